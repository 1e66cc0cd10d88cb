"""Named random streams.

The same (seed, role, ids) gives the same numbers, whoever asks and whenever.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, role: str, *ids: int) -> np.random.Generator:
    """Return the generator of ``role`` for ``ids`` (round, client, ...).

    Independent of every other one.
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, role, ids)))


def stream_seed(seed: int, role: str, *ids: int) -> int:
    """Return a 63-bit integer of that stream.

    For libraries that take a seed instead of a generator.
    """
    return int(_sequence(seed, role, ids).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, role: str, ids: tuple[int, ...]) -> np.random.SeedSequence:
    name = int.from_bytes(hashlib.sha256(role.encode()).digest()[:8], "big")
    return np.random.SeedSequence(entropy=seed, spawn_key=(name >> 32, name & 0xFFFFFFFF, *ids))

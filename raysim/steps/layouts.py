"""Where clients may sit in one product of many, so that each gets the same bits in any company.

BLAS computes other shapes differently, and some of its kernels (OpenBLAS's for AVX2) do so for rows
at other places of one product too. So blocks have one shape, and clients sit only at places where
equal forms were found to give equal answers: a client's bits do not depend on its neighbours.
Serves Eq. 3 of FB-NLL in the form of ``core.similarity.quadratic_energies``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from raysim.core.similarity import (
    pair_products,
    quadratic_energies,
    quadratic_energies_turned,
)
from raysim.seeding import stream
from raysim.steps.arrays import on_device, to_numpy

BLOCK = 256
"""Most clients per block, padding included."""
STEP = 16
"""Smaller blocks are multiples of this."""
TRIED = 64
"""Fewest answers by which two places are compared: a single one may agree by chance."""


@dataclass(frozen=True)
class Layout:
    """How blocks are multiplied, and where clients sit in them."""

    energies: Callable[..., Any]
    """``quadratic_energies`` or ``quadratic_energies_turned``."""
    block: int
    places: tuple[int, ...]


@lru_cache(maxsize=8)
def block_layout(
    clients: int, num_leading: int, dimension: int, num_columns: int, arrays: Any
) -> Layout:
    """Return the layout with the most places for forms and vectors of this shape, on this machine.

    ``clients`` counts those of all actors, so that all actors use the same layout.
    """
    block = min(-(-clients // STEP) * STEP, BLOCK)
    shape = (block, num_leading, dimension, num_columns)
    plain = equal_places(quadratic_energies, *shape, arrays)
    if len(plain) == block:
        return Layout(quadratic_energies, block, plain)
    turned = equal_places(quadratic_energies_turned, *shape, arrays)
    if len(turned) > len(plain):
        return Layout(quadratic_energies_turned, block, turned)
    return Layout(quadratic_energies, block, plain)


def equal_places(
    energies: Callable[..., Any],
    block: int,
    num_leading: int,
    dimension: int,
    num_columns: int,
    arrays: Any,
) -> tuple[int, ...]:
    """Return the largest set of places of a block where one form gets the same answers."""
    rng = stream(0, "places of a block")
    answers = [b""] * block
    for _ in range(-(-TRIED // num_columns)):
        leading = _repeated(rng, (num_leading, dimension), block)
        packed = _repeated(rng, (dimension * (dimension + 1) // 2,), block)
        drawn = rng.normal(size=(dimension, num_columns)).astype(np.float32)
        columns = on_device(drawn, arrays)
        forms = (on_device(leading, arrays), on_device(packed, arrays))
        rows = to_numpy(energies(*forms, columns, pair_products(columns)))
        answers = [before + row.tobytes() for before, row in zip(answers, rows, strict=True)]
    most, _ = Counter(answers).most_common(1)[0]
    return tuple(place for place, answer in enumerate(answers) if answer == most)


def _repeated(rng: np.random.Generator, shape: tuple[int, ...], count: int) -> np.ndarray:
    one = rng.normal(size=shape).astype(np.float32)
    return np.repeat(one[None], count, axis=0)

"""FB-NLL's exchange of spectra without a federation: clients of this process, a few at a time.

For tools that work on features alone. The answers are those of the federated step. What is large
is dropped once a client has had its turn.
"""
# K clients, J others, Q eigenvectors, D dimensions

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.core.similarity import symmetric_in_place
from raysim.core.threads import one_thread
from raysim.protocols import Client
from raysim.steps.grouping import GroupingSettings
from raysim.steps.layouts import BLOCK
from raysim.steps.relevance import offered_rank_task, relevance_together, vectors_task

KEPT_BYTES = 1_000_000_000
"""Most memory for spectra that are needed again; those beyond it are computed twice."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """What comparing clients gives."""

    similarity: np.ndarray
    """R (K, K), float32 (Eq. 6)."""
    rank: int
    """q, the eigenvectors compared."""
    offered: tuple[int, ...]
    """Eigenvectors each client had to offer; the smallest number is the rank."""


def compare(
    clients: Sequence[Client], how: GroupingSettings, *, arrays: Any = "auto"
) -> Comparison:
    """Return the similarity of every two clients (FB-NLL Eq. 2-6)."""
    shared = {"how": how, "arrays": arrays}
    offered, kept = [], 0
    with one_thread():  # sums over threads have other bits
        for client in clients:
            _, rank = offered_rank_task(client, {}, shared)
            _, vectors = vectors_task(client, {}, {**shared, "rank": rank})
            offered.append(vectors)
            kept += _bytes_kept(len(vectors))
            if kept > KEPT_BYTES:
                client.scratch.clear()
        rank = min(vectors.shape[1] for vectors in offered)
        rows = np.stack([np.ascontiguousarray(vectors[:, :rank].T) for vectors in offered])
        similarity = symmetric_in_place(answers(clients, rows, how, arrays=arrays))
    return Comparison(similarity, rank, tuple(vectors.shape[1] for vectors in offered))


def answers(
    clients: Sequence[Client], rows: np.ndarray, how: GroupingSettings, *, arrays: Any = "auto"
) -> np.ndarray:
    """Return r(k, j) (K, J) of the clients to the eigenvectors (J, Q, D) of others (Eq. 3-5)."""
    shared = {"how": how, "arrays": arrays, "rank": rows.shape[1], "others": {"rows": rows}}
    at_once = min(max(KEPT_BYTES // _bytes_kept(rows.shape[2]), 1), BLOCK)
    found = np.empty((len(clients), len(rows)), dtype=np.float32)
    with one_thread():
        for start in range(0, len(clients), at_once):
            part = clients[start : start + at_once]
            (stacked,) = relevance_together(part, [{}] * len(part), [shared] * len(part))
            found[start : start + len(part)] = stacked.replies
    return found


def _bytes_kept(dimension: int) -> int:
    """Return the most that a client keeps of its spectrum between the passes."""
    return 4 * dimension * dimension

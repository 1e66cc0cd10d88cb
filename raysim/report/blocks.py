"""Many clients in few cells: means over blocks of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_CELLS = 300
"""Rows and columns of a heat map; more are averaged in blocks."""
MOST_BARS = 100
"""Clients that get a bar of their own; more are sorted and averaged."""


def block_size(count: int, most: int) -> int:
    """Return how many neighbours share a cell so that at most ``most`` cells remain."""
    return max(1, -(-count // most))


def block_mean(values: np.ndarray, most_rows: int, most_columns: int) -> np.ndarray:
    """Return the means over blocks of rows and columns; the last block may be smaller."""
    found = np.asarray(values, dtype=np.float64)
    for axis, most in ((0, most_rows), (1, most_columns)):
        size = block_size(found.shape[axis], most)
        if size > 1:
            starts = np.arange(0, found.shape[axis], size)
            sums = np.add.reduceat(found, starts, axis=axis)
            counts = np.diff(np.append(starts, found.shape[axis]))
            found = sums / (counts[:, None] if axis == 0 else counts)
    return found


def block_names(clients: Sequence[Any] | np.ndarray, most: int) -> list[str]:
    """Return the name of every block: its first client, and how many follow."""
    size = block_size(len(clients), most)
    if size == 1:
        return [str(client) for client in clients]
    return [
        f"{clients[i]} and {rest} more"
        if (rest := min(size, len(clients) - i) - 1)
        else str(clients[i])
        for i in range(0, len(clients), size)
    ]

"""Who joins which group, from the loss of every model on every client (IFCA, Procedures 3-4)."""

from __future__ import annotations

import numpy as np


def natural_groups(losses: np.ndarray) -> np.ndarray:
    """Return argmin_m of losses (K, M) for every client; the lowest m in a tie."""
    groups: np.ndarray = np.argmin(losses, axis=1)
    return groups


def fills_all(groups: np.ndarray, num_groups: int, *, smallest: int = 1) -> bool:
    """Whether every one of ``num_groups`` groups has at least ``smallest`` clients."""
    counts = np.bincount(groups, minlength=num_groups)
    return bool(counts.min() >= smallest)


def forced_groups(losses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return groups of the given sizes: for m = 1..M the N_m free clients of smallest loss.

    ``sizes`` (M,) must add up to K, so that everyone is assigned once; in a tie the lowest wins.
    """
    if int(np.sum(sizes)) != len(losses):
        raise ValueError(f"group sizes must add up to {len(losses)} clients, got {sizes}")
    groups = np.full(len(losses), -1)
    for group, size in enumerate(sizes):
        free = np.flatnonzero(groups < 0)
        order = np.argsort(losses[free, group], kind="stable")
        groups[free[order[: int(size)]]] = group
    return groups


def equal_sizes(num_clients: int, num_groups: int) -> np.ndarray:
    """Return floor(K / M) for each group, one more for the first K mod M."""
    sizes = np.full(num_groups, num_clients // num_groups)
    sizes[: num_clients % num_groups] += 1
    return sizes

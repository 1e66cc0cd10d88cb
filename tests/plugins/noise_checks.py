"""What given labels must fulfil, whatever drew them (raysim/docs/sheets/noise.md)."""

from __future__ import annotations

import math

import numpy as np

from raysim.data.noise import NoisyLabels
from raysim.data.partition import Split
from raysim.errors import DataError


def check_noise(noisy: NoisyLabels, labels: np.ndarray, split: Split, *, classes: int) -> None:
    """Refuse labels that contradict what ``noisy`` says of them."""
    for k, (ids, given) in enumerate(zip(split.clients, noisy.given, strict=True)):
        true = labels[ids]
        _require(len(given) == len(true), k, f"{len(given)} labels for {len(true)} samples")
        changed = given != true
        _require(given.dtype == np.int64, k, f"labels of type {given.dtype}")
        _require(given.min() >= 0 and given.max() < classes, k, "a label that is no class")
        _require(noisy.realised[k] == changed.mean(), k, f"realised noise {noisy.realised[k]}")
        _require(noisy.is_noisy[k] or not changed.any(), k, "wrong labels but is called clean")
        target = int(noisy.target[k])
        if target >= 0:
            task = split.tasks[split.task_of[k]]
            _require(target not in task, k, f"target {target} inside its task {task}")
            _require(bool((given[changed] == target).all()), k, f"flips beside target {target}")


def check_sources(noisy: NoisyLabels, labels: np.ndarray, split: Split) -> None:
    """Refuse flips from more than ceil(alpha n / smallest class) + 1 classes."""
    for k, (ids, given) in enumerate(zip(split.clients, noisy.given, strict=True)):
        true = labels[ids]
        task = split.tasks[split.task_of[k]]
        sources = np.unique(true[given != true])
        _require(set(sources.tolist()) <= set(task), k, f"flips from {sources}, task {task}")
        smallest = min(n for c in task if (n := np.count_nonzero(true == c)))
        most = math.ceil(noisy.rate[k] * len(true) / smallest) + 1
        _require(len(sources) <= most, k, f"flips from {len(sources)} classes, at most {most}")


def check_level(noisy: NoisyLabels, *, wrong_fraction: float) -> None:
    """Refuse realised noise away from ``wrong_fraction`` of the drawn level.

    ``wrong_fraction`` is (C - 1) / C for labels redrawn from all classes, 1 if the true one is
    excluded. All clients together stay within 3 sigma; a single one within 5, since among
    thousands of clients some pass 3 by chance.
    """
    sizes = np.array([len(given) for given in noisy.given], dtype=np.float64)
    p = noisy.rate * wrong_fraction
    off, variance = sizes * (noisy.realised - p), sizes * p * (1.0 - p)
    _require(off.sum() ** 2 <= 9.0 * variance.sum() + 1e-9, -1, f"{off.sum():+.1f} flips too many")
    for k in np.flatnonzero(off**2 > 25.0 * variance + 1e-9):
        _require(False, int(k), f"realised noise {noisy.realised[k]:.3f}, expected {p[k]:.3f}")


def _require(ok: bool, client: int, found: str) -> None:
    if not ok:
        who = f"client {client}" if client >= 0 else "all clients together"
        raise DataError(
            f"given labels contradict their noise model: {who} got {found}; draw them again"
        )

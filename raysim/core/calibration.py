"""Ranks and threshold of FB-NLL's label correction, from the server's clean images alone.

The paper publishes neither l nor tau_sim; the rule is ours (raysim/docs/sheets/fb_nll.md,
"Calibration of l, l2 and tau_sim").
Shapes: N samples, D dimensions, C classes, L directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysim.core.relabeling import ClassSubspaces, class_subspaces, project
from raysim.core.similarity import relevance
from raysim.core.spectra import Array, Spectrum, as_numpy

RANKS = (3, 5, 8, 10, 15, 20)
"""Candidates for l."""


@dataclass(frozen=True)
class Calibration:
    """Settings for ``relabel``, and the evidence for them."""

    rank: int
    """Phase-1 rank, l."""
    projection_rank: int
    """Phase-2 rank, l2."""
    threshold: float
    """tau_sim, halfway between the next two."""
    same_low: float
    """5th percentile of the similarity of two halves of one class, at ``rank``."""
    different_high: float
    """95th percentile of the similarity of halves of two classes; 0 if there is one class."""
    accuracy: float
    """Share of held-out images that Eq. 7 gives their own class, at ``projection_rank``."""


@dataclass(frozen=True, eq=False)
class _Split:
    first: ClassSubspaces
    second: ClassSubspaces
    held_out: np.ndarray
    held_out_labels: np.ndarray


def calibrate(
    features: Array,
    labels: Array,
    rng: np.random.Generator,
    *,
    splits: int = 5,
    ranks: Sequence[int] = RANKS,
    projection_ranks: Sequence[int] = (5, 10, 15, 20, 30, 40, 60),
) -> Calibration:
    """Return the ranks and the threshold that tell halves of the clean classes apart best.

    Parameters
    ----------
    features, labels
        The server's clean images (N, D) and their classes (N,); every class needs two images.
    rng
        Draws the halves.
    splits
        How many random splits into halves are pooled.
    ranks
        Candidates for phase 1: the smallest with the widest gap between same-class and
        different-class similarity wins.
    projection_ranks
        Candidates for phase 2: the smallest with the best held-out accuracy wins. Candidates
        above half of the smallest class or the dimension are left out.
    """
    rows, classes = as_numpy(features).astype(np.float64), as_numpy(labels)
    limit = _largest_rank(rows, classes, splits)
    wanted = min(limit, max(*ranks, *projection_ranks, 1))
    drawn = [_draw_split(rows, classes, wanted, rng) for _ in range(splits)]
    limit = min(min(one.first.rank, one.second.rank) for one in drawn)
    candidates = _feasible(ranks, limit)
    gaps = [_percentiles(drawn, rank) for rank in candidates]
    chosen = int(np.argmax([low - high for low, high in gaps]))  # the first maximum
    low, high = gaps[chosen]
    projections = _feasible(projection_ranks, limit)
    accuracies = [_held_out_accuracy(drawn, rank) for rank in projections]
    best = int(np.argmax(accuracies))
    return Calibration(
        rank=candidates[chosen],
        projection_rank=projections[best],
        threshold=(low + high) / 2,
        same_low=low,
        different_high=high,
        accuracy=accuracies[best],
    )


def _largest_rank(features: np.ndarray, labels: np.ndarray, splits: int) -> int:
    if splits < 1:
        raise ValueError(f"splits must be at least 1, got {splits}; 5 is the default")
    present, counts = np.unique(labels, return_counts=True)
    if len(counts) == 0 or counts.min() < 2:
        few = int(present[counts.argmin()]) if len(counts) else "any"
        raise ValueError(
            f"calibration needs two clean images of every class, got fewer of class {few}; "
            "raise the number of clean images"
        )
    return int(min(counts.min() // 2, features.shape[1]))


def _draw_split(
    features: np.ndarray, labels: np.ndarray, rank: int, rng: np.random.Generator
) -> _Split:
    first, second = [], []
    for label in np.unique(labels):
        ids = rng.permutation(np.flatnonzero(labels == label))
        first.append(ids[: len(ids) // 2])
        second.append(ids[len(ids) // 2 :])
    one, two = np.concatenate(first), np.concatenate(second)
    names = np.unique(labels, return_inverse=True)[1]  # gaps in the class ids do not matter here
    return _Split(
        first=class_subspaces(features[one], names[one], rank),
        second=class_subspaces(features[two], names[two], rank),
        held_out=features[two],
        held_out_labels=names[two],
    )


def _percentiles(drawn: Sequence[_Split], rank: int) -> tuple[float, float]:
    """Return the 5th percentile of same-class and the 95th of different-class similarity."""
    same, different = [], []
    for split in drawn:
        forward = _relevances(split.first.spectra, split.second, rank)
        backward = _relevances(split.second.spectra, split.first, rank)
        table = (forward + backward.T) / 2
        on_diagonal = np.eye(len(table), dtype=bool)
        same.append(table[on_diagonal])
        different.append(table[~on_diagonal])
    others = np.concatenate(different)
    high = float(np.percentile(others, 95)) if len(others) else 0.0
    return float(np.percentile(np.concatenate(same), 5)), high


def _relevances(spectra: Sequence[Spectrum], others: ClassSubspaces, rank: int) -> np.ndarray:
    vectors = others.vectors(rank)
    return np.stack([relevance(one, vectors) for one in spectra])


def _held_out_accuracy(drawn: Sequence[_Split], rank: int) -> float:
    """Return the share of held-out images that ``project`` puts into their class."""
    hits = []
    for one in drawn:
        unknown = np.full(len(one.held_out), -1)  # no old label that a tie could keep
        projected = project(one.held_out, one.first.vectors(rank), unknown)
        hits.append(projected == one.held_out_labels)
    return float(np.mean(np.concatenate(hits)))


def _feasible(ranks: Sequence[int], limit: int) -> list[int]:
    return sorted({rank for rank in ranks if 1 <= rank <= limit}) or [limit]

"""Means over seeds, and differences between methods on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Mean:
    """Mean and sample sd over seeds; with one seed there is no sd."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean of the differences over common seeds; the interval needs two of them."""

    mean: float
    low: float | None
    high: float | None
    n: int


def mean_over_seeds(values: Sequence[float | None]) -> Mean | None:
    """Return the mean of what is known, or None where nothing is."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    sd = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Mean(float(np.mean(known)), sd, len(known))


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], level: float = LEVEL
) -> Difference | None:
    """Return ours minus theirs over the common seeds with Student's interval, or None.

    A seed fixes data, noise and initial weights, so that the differences vary less than either.
    """
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    gaps = [ours[seed] - theirs[seed] for seed in common]
    mean, n = float(np.mean(gaps)), len(gaps)
    if n < 2:
        return Difference(mean, None, None, n)
    from scipy import stats

    reach = float(stats.t.ppf((1 + level) / 2, n - 1)) * float(np.std(gaps, ddof=1)) / math.sqrt(n)
    return Difference(mean, mean - reach, mean + reach, n)

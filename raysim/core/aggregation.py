"""Exact weighted sums of models: the same bits in any order and any split into partial sums.

They carry FedAvg (FedRN Eq. 1) and the mean in a group (FB-NLL Algorithm 1, line 30). Every
weighted value is rounded to a grid of 2^-36 and added as an integer. A float sum would depend
on the order in which clients finish. A mean is off by at most 2^-37 over the mean weight (7e-12 for
weights near 1) before it is stored as float32. Entries with large values, such as the running
variances of a network that took a bad step, are kept in two parts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

GRID = 2.0**-36
"""Spacing of the sums, 1.5e-11."""
WIDE = 2.0**50
"""Weighted values (in units of the grid) above which an entry is kept in two parts."""
STEP = 2.0**40
"""Units of the high part; weighted totals may then reach 2^67, 1.5e20."""
_LIMIT = 2**63 - 1
COLUMNS = 4096
"""Entries of a stack handled at a time, so that intermediate results stay in the cache."""


@dataclass(frozen=True, eq=False)
class ExactSum:
    """A weighted sum of one or more trees, in multiples of ``GRID``."""

    totals: Mapping[str, np.ndarray]
    """Sum of weight * value, int64; of wide entries the low parts."""
    weight: int
    """Sum of the weights."""
    bound: int
    """Sum of each contribution's largest magnitude: no entry of ``totals`` can exceed it."""
    count: int
    """Number of contributions."""
    high: Mapping[str, np.ndarray] = field(default_factory=dict)
    """High parts of the wide entries, int64, in multiples of ``STEP``."""
    high_bound: int = 0
    """The same bound for the high parts."""


class Accumulator:
    """Adds sums in place, so that K contributions need the memory of one."""

    def __init__(self) -> None:
        self._sum: ExactSum | None = None

    def add(self, part: ExactSum) -> None:
        """Add ``part``; nothing changes if it does not fit."""
        if self._sum is None:
            totals = {name: array.copy() for name, array in part.totals.items()}
            self._sum = replace(part, totals=totals)
            return
        _check_fit(self._sum, part)
        for name, array in self._sum.totals.items():
            np.add(array, part.totals[name], out=array)
        self._sum = _renumbered(self._sum, part, self._sum.totals)

    def take(self) -> ExactSum:
        """Return the sum and start again from nothing."""
        if self._sum is None:
            raise ValueError("an empty accumulator has no sum, got no contribution; add one first")
        total, self._sum = self._sum, None
        return total


def on_grid(tree: Mapping[str, np.ndarray], weight: float) -> ExactSum:
    """Return ``weight * tree`` on the grid; the weight is rounded to the grid first."""
    units = _weight_units(weight)
    totals: dict[str, np.ndarray] = {}
    high: dict[str, np.ndarray] = {}
    bound = high_bound = 0
    for name, array in tree.items():
        with np.errstate(over="ignore", invalid="ignore"):
            # units * value is weight * value / GRID: one rounding to float64, one to the grid.
            scaled = np.rint(np.asarray(array, dtype=np.float64) * float(units))
        largest = _largest(scaled, array, name)
        if largest > WIDE:
            above = np.floor(scaled / STEP)  # exact: a power of two, and fewer digits
            scaled -= above * STEP
            high[name] = np.asarray(above, dtype=np.int64)
            high_bound, largest = max(high_bound, math.ceil(largest / STEP)), STEP
        bound = max(bound, int(largest))
        totals[name] = np.asarray(scaled, dtype=np.int64)  # 0-d stays an array
    return ExactSum(totals, units, bound, 1, high, high_bound)


def stack_on_grid(tree: Mapping[str, np.ndarray], weights: np.ndarray) -> ExactSum:
    """Return the sum over axis 0 of ``weights[s] * tree[s]``: the bits of adding one by one."""
    parts = np.array([_weight_units(float(weight)) for weight in weights], dtype=np.float64)
    totals: dict[str, np.ndarray] = {}
    bound = 0
    for name, array in tree.items():
        flat = array.reshape(len(array), -1)
        total = np.empty(flat.shape[1], dtype=np.int64)
        largest = np.zeros(len(flat))
        for at in range(0, flat.shape[1], COLUMNS):
            part = flat[:, at : at + COLUMNS]
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = np.multiply(part, parts[:, None], dtype=np.float64)
                np.rint(scaled, out=scaled)
            reach = np.maximum(scaled.max(axis=1), -scaled.min(axis=1))  # NaN where one is
            if not (reach <= WIDE).all():
                rows = ({n: a[s] for n, a in tree.items()} for s in range(len(weights)))
                return functools.reduce(merge, map(on_grid, rows, map(float, weights)))
            np.maximum(largest, reach, out=largest)
            total[at : at + COLUMNS] = scaled.astype(np.int64).sum(axis=0)
        bound = max(bound, sum(int(x) for x in largest))
        if bound > _LIMIT:
            raise OverflowError(f"entry {name!r}: {_too_large(bound, _LIMIT)}")
        totals[name] = total.reshape(array.shape[1:])
    return ExactSum(totals, int(sum(int(p) for p in parts)), bound, len(parts))


def merge(a: ExactSum, b: ExactSum) -> ExactSum:
    """Return the sum of two sums; refuses before an entry could wrap around."""
    _check_fit(a, b)
    totals = {name: np.asarray(array + b.totals[name]) for name, array in a.totals.items()}
    return _renumbered(a, b, totals)


def mean(total: ExactSum, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Return the weighted mean of the contributions: FedAvg, FedRN Eq. 1, FB-NLL Alg. 1, line 30.

    float32, as models are, unless ``dtype`` says otherwise.
    """
    weight = float(total.weight)
    wide = {name: total.totals[name] + STEP * above for name, above in total.high.items()}
    return {
        name: np.asarray(array / weight, dtype=dtype)  # int64 / float is float64
        for name, array in {**total.totals, **wide}.items()
    }


def total_weight(total: ExactSum) -> float:
    """Return the sum of the weights."""
    return total.weight * GRID


def _weight_units(weight: float) -> int:
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(
            f"weight must be positive and finite, got {weight}; leave out clients without weight"
        )
    units = round(weight / GRID)
    if units == 0:
        raise ValueError(f"weight must be at least {GRID:.2g}, got {weight}; scale the weights up")
    return units


def _largest(scaled: np.ndarray, array: np.ndarray, name: str) -> float:
    if scaled.size == 0:
        return 0.0
    if not np.isfinite(array).all():
        raise ValueError(
            f"entry {name!r} must be finite, got NaN or infinity; "
            "lower the learning rate or drop this client"
        )
    largest = max(float(scaled.max()), -float(scaled.min()))
    if largest >= 2.0**63 * STEP:
        raise OverflowError(f"entry {name!r}: {_too_large(largest, _LIMIT * STEP)}")
    return largest


def _check_fit(a: ExactSum, b: ExactSum) -> None:
    shapes = [{name: array.shape for name, array in one.totals.items()} for one in (a, b)]
    if shapes[0] != shapes[1]:
        names = sorted(k for k in shapes[0] | shapes[1] if shapes[0].get(k) != shapes[1].get(k))
        raise ValueError(
            f"sums must have the same entries and shapes, got differences in {names}; "
            "only contributions to one model can be added"
        )
    low, high = a.bound + b.bound, a.high_bound + b.high_bound
    if low > _LIMIT:
        raise OverflowError(_too_large(low, _LIMIT))
    if high > _LIMIT:
        raise OverflowError(_too_large(high * STEP, _LIMIT * STEP))


def _renumbered(a: ExactSum, b: ExactSum, totals: Mapping[str, np.ndarray]) -> ExactSum:
    high = {n: np.asarray(a.high.get(n, 0) + b.high.get(n, 0)) for n in {**a.high, **b.high}}
    return ExactSum(
        totals,
        a.weight + b.weight,
        a.bound + b.bound,
        a.count + b.count,
        high,
        a.high_bound + b.high_bound,
    )


def _too_large(units: float, limit: float) -> str:
    return (
        f"a weighted sum may reach {units * GRID:.3g}, more than the {limit * GRID:.3g} that an "
        "exact sum holds; use smaller weights (shares instead of sample counts) or check for "
        "diverged values"
    )

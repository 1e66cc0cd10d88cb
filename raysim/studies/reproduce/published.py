"""A number as a paper prints it."""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = (2, 3, 5)
"""Numbers of tasks (M), the columns of every table of RCC-PFL and FB-NLL."""


@dataclass(frozen=True)
class Published:
    """A printed number, in per cent for accuracies."""

    mean: float
    sd: float | None = None
    """None where the paper gives a single value."""

"""What a figure shows, apart from how it is drawn.

``figures`` makes these values from runs; ``plots`` draws them as PNG and PDF with matplotlib,
``page`` as an interactive figure in HTML. Both read the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import yaml


@dataclass(frozen=True)
class Line:
    """One curve; ``x`` has one list per axis of the figure ("round", "bytes", "seconds")."""

    name: str
    x: Mapping[str, Sequence[float | str]]
    y: Sequence[float]
    low: Sequence[float] | None = None
    """Mean minus sd over seeds, where there are several."""
    high: Sequence[float] | None = None
    method: str = ""
    """Curves of one method share a colour and a toggle."""
    dash: int = 0
    """Tells the curves of one method apart (0: solid), such as those of tasks 1, 2, ..."""


@dataclass(frozen=True)
class Lines:
    """Curves over one or more choices of the horizontal axis."""

    lines: Sequence[Line]
    x_labels: Mapping[str, str]
    """By axis, in the order of the choices, such as {"round": "round", "bytes": "MB sent"}."""
    y_label: str
    percent: bool = False
    """``y`` are fractions, shown in per cent."""
    log: bool = False
    """The horizontal axis is logarithmic."""
    categories: Sequence[str] = ()
    """The values of ``x`` in their order, where these are words."""
    y_range: tuple[float, float] | None = None
    """None: each way of drawing finds its own."""


@dataclass(frozen=True)
class Heatmap:
    """A matrix; at most a few hundred rows (larger ones are averaged in blocks before)."""

    values: np.ndarray
    row_names: Sequence[str]
    column_names: Sequence[str]
    value_label: str
    row_label: str = ""
    column_label: str = ""
    low: float | None = None
    high: float | None = None
    bars: Sequence[int] | None = None
    """A group number per row, shown as a coloured margin."""
    annotate: bool = False


@dataclass(frozen=True)
class Dendrogram:
    """Merges as SciPy's ``dendrogram(no_plot=True)`` gives them, and the height of the cut."""

    icoord: Sequence[Sequence[float]]
    dcoord: Sequence[Sequence[float]]
    leaves: Sequence[str]
    groups: Sequence[int]
    """Group of every leaf, in their order."""
    cut: float | None
    y_label: str = "distance 1 - R"


@dataclass(frozen=True)
class Bars:
    """Bars per category; one series beside the other, or stacked."""

    categories: Sequence[str]
    series: Mapping[str, Sequence[float]]
    y_label: str
    x_label: str = ""
    stacked: bool = False
    percent: bool = False
    log: bool = False


@dataclass(frozen=True)
class Panels:
    """Heat maps side by side under one title, such as histograms at three times."""

    panels: Mapping[str, Heatmap]


@dataclass(frozen=True)
class Violins:
    """Distributions over clients, one per method."""

    values: Mapping[str, Sequence[float]]
    y_label: str


Drawing = Lines | Heatmap | Dendrogram | Bars | Panels | Violins


@dataclass(frozen=True)
class Figure:
    """A drawing with its words; without ``drawing``, ``missing`` says what the runs lack."""

    name: str
    """Short and fit for a file name: "accuracy", "similarity"."""
    title: str
    caption: str
    """How to read it, and which figure of which paper it corresponds to."""
    drawing: Drawing | None = None
    missing: str = ""
    run: str = ""
    """Label of the run it belongs to; empty: of all runs together."""
    tab: str = ""
    """Figures with a tab share the top of the page, which shows one tab at a time."""
    is_first: bool = False
    """Shown right below the first table."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Numbers that belong to it, such as {"silhouette": 0.62}."""


@cache
def words() -> dict[str, dict[str, dict[str, str]]]:
    """Return title and caption by "figures" or "tables" and name."""
    text = (files("raysim.report") / "assets" / "words.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(text)
    return found


def make_figure(name: str, drawing: Drawing | None) -> Figure:
    """Return a figure with its words; without a drawing it says what the runs lack."""
    said = words()["figures"][name]
    missing = said["missing"] if drawing is None else ""
    return Figure(name, said["title"], said["caption"], drawing, missing)

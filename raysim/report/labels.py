"""Figures of labels: what clients hold, before and after noise and correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raysim.report.blocks import MOST_BARS, MOST_CELLS, block_mean, block_names, block_size
from raysim.report.figure import Bars, Drawing, Figure, Heatmap, Panels, make_figure
from raysim.report.records import Run

TIMES = {"true": "before noise", "given": "after noise", "corrected": "after correction"}
MOST_ANNOTATED = 12
"""Classes up to which a confusion matrix has its numbers written into the cells."""


def label_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the three figures of every run that has them, or what is missing."""
    figures: list[Figure] = []
    for name, make in (
        ("labels", _histograms),
        ("confusion", _confusion),
        ("client-noise", _noise),
    ):
        found = [figure for run in runs if (figure := make(run)) is not None]
        figures += found or [make_figure(name, None)]
    return figures


def _of_run(run: Run, name: str, drawing: Drawing, more: str = "") -> Figure:
    """Return a figure of one run; ``more`` is added to its caption."""
    figure = make_figure(name, drawing)
    title, caption = f"{figure.title}: {run.label}", figure.caption + more
    return replace(figure, title=title, caption=caption, run=run.label)


def _histograms(run: Run) -> Figure | None:
    counts = {when: run.artifact(f"labels_{name}", 2) for name, when in TIMES.items()}
    known = {when: array for when, array in counts.items() if array is not None and array.size}
    if not known:
        return None
    clients = max(len(array) for array in known.values())
    size = block_size(clients, MOST_CELLS)
    panels = {}
    for when, array in known.items():
        panels[when] = Heatmap(
            values=block_mean(_shares(array), MOST_CELLS, MOST_CELLS),
            row_names=block_names(range(len(array)), MOST_CELLS),
            column_names=block_names(_class_names(run, array.shape[1]), MOST_CELLS),
            value_label="share of labels",
            row_label="client",
            column_label="class",
            low=0.0,
            high=max(float(_shares(a).max()) for a in known.values()),
        )
    absent = [when for when in TIMES.values() if when not in known]
    more = f" Averaged over blocks of {size} clients." if size > 1 else ""
    if absent:
        more += f" Not recorded: {', '.join(absent)}."
    return _of_run(run, "labels", Panels(panels), more)


def _shares(counts: np.ndarray) -> np.ndarray:
    """Return the rows of counts so that each sums to 1; an empty one stays 0."""
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _confusion(run: Run) -> Figure | None:
    panels = {}
    for name in ("given", "corrected"):
        counts = run.artifact(f"confusion_{name}", 2)
        if counts is None or counts.shape[0] != counts.shape[1] or not counts.size:
            continue
        names = block_names(_class_names(run, len(counts)), MOST_CELLS)
        panels[TIMES[name]] = Heatmap(
            values=block_mean(_shares(counts), MOST_CELLS, MOST_CELLS),
            row_names=names,
            column_names=names,
            value_label="share of the true class",
            row_label="true class",
            column_label="label",
            low=0.0,
            high=1.0,
            annotate=len(counts) <= MOST_ANNOTATED,
        )
    if not panels:
        return None
    more = "" if TIMES["corrected"] in panels else " This run corrects no labels."
    return _of_run(run, "confusion", Panels(panels), more)


def _noise(run: Run) -> Figure | None:
    given, corrected = (run.artifact(f"client_noise_{t}", 1) for t in ("given", "corrected"))
    if given is None or not given.size:
        return None
    columns = {"before correction": given}
    if corrected is not None and len(corrected) == len(given):
        columns["after correction"] = corrected
    more = "" if len(columns) == 2 else " This run corrects no labels."
    clients, x_label = np.arange(len(given)), "client"
    size = block_size(len(given), MOST_BARS)
    if size > 1:
        clients = np.argsort(given, kind="stable")
        x_label = f"{len(given):,} clients sorted by noise, means of {size}"
        more += f" Clients are sorted by their noise and averaged by {size}."
    series = {
        name: block_mean(values[clients][:, None], MOST_BARS, 1)[:, 0].tolist()
        for name, values in columns.items()
    }
    names = block_names(clients, MOST_BARS)
    bars = Bars(names, series, "share of wrong labels", x_label, percent=True)
    return _of_run(run, "client-noise", bars, more)


def _class_names(run: Run, count: int) -> list[str]:
    names = run.federation.get("class_names")
    if isinstance(names, list) and len(names) == count:
        return [str(name) for name in names]
    return [str(c) for c in range(count)]

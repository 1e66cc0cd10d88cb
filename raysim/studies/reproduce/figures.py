"""Pictures of the figures, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysim.studies.reproduce.papers import VALUES, Table
from raysim.studies.reproduce.results import Result, rows_of


def draw_figure(table: Table, results: Sequence[Result], folder: Path) -> Path | None:
    """Draw the first seed of a figure; return the file, or None where nothing can be drawn."""
    if "figure" not in table.name or not results or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    path = folder / f"{table.name.rpartition('/')[2]}.png"
    if table.kind == "accuracy":
        _bars(table, results).savefig(path, dpi=150)
        return path
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    first = min(result["seed"] for result in results)
    for result in results:
        if result["seed"] == first:
            _plot(axes, result)
    axes.set(xlabel="round" if table.kind == "loss" else "eigenvectors")
    axes.set(ylabel="test loss" if table.kind == "loss" else "relevance")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    return path


def _bars(table: Table, results: Sequence[Result]) -> Any:
    """Return a figure with a panel per value: the mean over the seeds of every cell that ran."""
    from matplotlib.figure import Figure

    rows = [row for row in rows_of(table, results) if row.mean is not None]
    cells = list(dict.fromkeys(row.cell for row in rows))
    count = len(table.values)
    figure = Figure(figsize=(3 + 4 * count, 1 + 0.25 * len(cells)), layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axes, value in zip(panels, table.values, strict=True):
        own = [row for row in rows if row.what == table.value_name(value)]
        axes.barh([row.cell for row in own], [row.mean for row in own])
        axes.set(xlabel=f"{VALUES[value]}, %")
        axes.yaxis.set_inverted(True)  # the first cell on top
    return figure


def _plot(axes: Any, result: Result) -> None:
    series = result["series"]
    if "eigenvectors" in series:
        for label, curve in series.items():
            if label != "eigenvectors":
                axes.plot(series["eigenvectors"], curve, label=label)
        return
    rounds = list(range(1, len(series["round"]) + 1))
    for task, losses in enumerate(zip(*series["test_loss_by_task"], strict=True)):
        label = f"{result['cell'].rpartition('/')[2]}, task {task + 1}"
        axes.plot(rounds, losses, label=label)

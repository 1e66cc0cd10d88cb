"""Pictures of the figures, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from raysim.reproduce.recipes import Target
from raysim.reproduce.results import Result


def draw_figure(target: Target, results: Sequence[Result], folder: Path) -> Path | None:
    """Draw the first seed of a figure; return the file, or None where nothing can be drawn."""
    if "figure" not in target.name or not results or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    first = min(result["seed"] for result in results)
    for result in results:
        if result["seed"] == first:
            _plot(axes, result)
    axes.set(xlabel="round" if target.kind == "loss" else "eigenvectors")
    axes.set(ylabel="test loss" if target.kind == "loss" else "relevance")
    axes.legend(fontsize="small")
    path = folder / f"{target.name.rpartition('/')[2]}.png"
    figure.savefig(path, dpi=150)
    return path


def _plot(axes: object, result: Result) -> None:
    series = result["series"]
    if "eigenvectors" in series:
        curves = {k: v for k, v in series.items() if k != "eigenvectors"}
        for label, curve in curves.items():
            axes.plot(series["eigenvectors"], curve, label=label)  # type: ignore[attr-defined]
        return
    rounds = list(range(1, len(series["round"]) + 1))
    for task, losses in enumerate(zip(*series["test_loss_by_task"], strict=True)):
        label = f"{result['cell'].rpartition('/')[2]}, task {task + 1}"
        axes.plot(rounds, losses, label=label)  # type: ignore[attr-defined]

"""Figures over rounds (accuracy, loss, labels judged clean), over clients, and of the costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from raysim.report.figure import Bars, Figure, Line, Lines, Violins, make_figure
from raysim.report.frame import per_client, task_names
from raysim.report.records import Run

if TYPE_CHECKING:
    import pandas as pd

AXES = {"round": "round", "bytes": "MB sent (up + down)", "seconds": "seconds"}


def setting_figures(setting: str, frame: pd.DataFrame, runs: Sequence[Run]) -> list[Figure]:
    """Return the figures that compare the methods of one setting."""
    rounds = frame[frame.of == "round"]
    figures = [
        *_mean_figures(rounds),
        *_task_figures(rounds, runs),
        _client_accuracy_figure(runs),
        _relevance_figure(runs),
        _selection_figure(rounds),
        *_f_score_figures(runs),
        _communication_figure(rounds),
        _timing_figure(frame),
    ]
    return [replace(figure, title=f"{figure.title}: {setting}") for figure in figures]


# ---- over rounds ---------------------------------------------------------------------------


def _mean_figures(rounds: pd.DataFrame) -> list[Figure]:
    """Return accuracy and losses of all methods, each as one curve per method."""
    has_seeds = rounds.groupby("series").seed.nunique().max() > 1
    band = " The band is one sd over seeds." if has_seeds else ""
    figures = []
    for name, value in (
        ("accuracy", "accuracy"),
        ("test-loss", "test_loss"),
        ("training-loss", "loss"),
    ):
        lines = _lines(curves(rounds, value), name.replace("-", " "), percent=name == "accuracy")
        figure = make_figure(name, lines)
        caption = figure.caption + band
        figures.append(replace(figure, caption=caption, is_first=name == "accuracy"))
    return figures


def _task_figures(rounds: pd.DataFrame, runs: Sequence[Run]) -> list[Figure]:
    """Return accuracy and test loss per task (FB-NLL and RCC-PFL, Fig. 3)."""
    figures = []
    for entry in ("accuracy", "loss"):
        values = [name for name in rounds if name.startswith(f"{entry} of task ")]
        lines = _dashed(rounds, {v: v.removeprefix(f"{entry} of ") for v in values})
        percent = entry == "accuracy"
        drawing = _lines(lines, "accuracy" if percent else "test loss", percent=percent)
        classes = task_names(runs, len({line.dash for line in lines}))
        notes = {f"task {i + 1}": words for i, words in enumerate(classes)}
        figures.append(replace(make_figure(f"task-{entry}", drawing), notes=notes))
    return figures


def _selection_figure(rounds: pd.DataFrame) -> Figure:
    """Return precision and recall of the labels judged clean (FedRN, Fig. 3)."""
    scores = ["precision", "recall"]
    held = rounds.assign(**rounds.groupby("run")[scores].ffill())
    lines = _dashed(held, {name: name for name in scores})
    return make_figure("selection", _lines(lines, "share", percent=True))


def _dashed(rounds: pd.DataFrame, names: Mapping[str, str]) -> list[Line]:
    """Return a line per method and value, dashed by value; those of a method stand together."""
    pairs = enumerate(names.items())
    lines = [line for i, (value, name) in pairs for line in curves(rounds, value, name, i)]
    order = list(rounds.method.unique())
    return sorted(lines, key=lambda line: order.index(line.method))


def curves(rounds: pd.DataFrame, value: str, name: str = "", dash: int = 0) -> list[Line]:
    """Return a line per method: the mean over seeds at the rounds that all of them have."""
    columns = ["method", "run", "round", "bytes", "seconds", value]
    known = rounds[columns].dropna(subset=value).drop_duplicates(["run", "round"], keep="last")
    at_round = known.groupby(["method", "round"])
    points = at_round[["bytes", "seconds", value]].mean()
    points = points.assign(sd=at_round[value].std(), seeds=at_round.size()).reset_index()
    common = points[points.seeds == points.method.map(known.groupby("method").run.nunique())]
    lines = []
    for method in known.method.unique():
        own = common[common.method == method]
        if len(own):
            x = {axis: own[axis].astype(float).tolist() for axis in AXES}
            full = f"{method}, {name}" if name else str(method)
            lines.append(banded(full, str(method), x, own[value], own.sd, dash))
    return lines


def banded(
    name: str,
    method: str,
    x: dict[str, list[float]],
    mean: pd.Series | np.ndarray,
    sd: pd.Series | np.ndarray,
    dash: int = 0,
) -> Line:
    """Return a line with the band of one sd, where there is more than one seed."""
    low, high = mean - sd, mean + sd
    if np.isnan(sd).all():
        return Line(name, x, mean.tolist(), method=method, dash=dash)
    return Line(name, x, mean.tolist(), low.tolist(), high.tolist(), method, dash)


def _lines(lines: Sequence[Line], y_label: str, *, percent: bool = False) -> Lines | None:
    return Lines(lines, AXES, y_label, percent=percent) if lines else None


# ---- of arrays -----------------------------------------------------------------------------


def _relevance_figure(runs: Sequence[Run]) -> Figure:
    """Return relevance against the number of eigenvectors (FB-NLL, Fig. 5)."""
    lines = []
    for method, arrays in _by_method(runs, lambda run: run.artifact("relevance_by_rank", 2)):
        known = [array.astype(float) for array in arrays if array.shape[1] == 2 and len(array)]
        if not known:
            continue
        ranks = min(len(array) for array in known)
        values = np.stack([array[:ranks] for array in known])
        sd = values.std(axis=0, ddof=1) if len(values) > 1 else np.full((ranks, 2), np.nan)
        x = {"rank": [float(q) for q in range(1, ranks + 1)]}
        for i, name in enumerate(("same group", "different groups")):
            mean = values.mean(axis=0)[:, i]
            lines.append(banded(f"{method}, {name}", method, x, mean, sd[:, i], i))
    axes = {"rank": "eigenvectors compared, q"}
    return make_figure("relevance", Lines(lines, axes, "similarity R") if lines else None)


def _f_score_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the F-scores of labels judged clean by the method, and by the final models."""
    y_label = "F-score of labels judged clean"
    by_method = _violins(runs, lambda run: run.artifact("client_f_score", 1), y_label)
    by_models = _violins(runs, lambda run: run.artifact("client_f_score_judged", 1), y_label)
    return [make_figure("f-score", by_method), make_figure("f-score-judged", by_models)]


def _client_accuracy_figure(runs: Sequence[Run]) -> Figure:
    drawing = _violins(runs, lambda run: np.array(per_client(run) or ()), "accuracy")
    return make_figure("client-accuracy", drawing)


def _violins(
    runs: Sequence[Run], array_of: Callable[[Run], np.ndarray | None], y_label: str
) -> Violins | None:
    """Return the finite values of all seeds of each method."""
    pooled = {method: np.concatenate(arrays) for method, arrays in _by_method(runs, array_of)}
    values = {method: array[np.isfinite(array)].tolist() for method, array in pooled.items()}
    known = {method: found for method, found in values.items() if found}
    return Violins(known, y_label) if known else None


def _by_method(
    runs: Sequence[Run], array_of: Callable[[Run], np.ndarray | None]
) -> Iterable[tuple[str, list[np.ndarray]]]:
    """Return the arrays of each method's runs, of methods that have any."""
    found: dict[str, list[np.ndarray]] = {}
    for run in runs:
        array = array_of(run)
        if array is not None:
            found.setdefault(run.short, []).append(array)
    return found.items()


# ---- costs ---------------------------------------------------------------------------------


def _communication_figure(rounds: pd.DataFrame) -> Figure:
    messages = [name for name in rounds if name.startswith(("up: ", "down: "))]
    sums = rounds.groupby(["method", "run"], sort=False)[messages].sum()
    means = sums.groupby(level="method", sort=False).mean().loc[:, lambda m: m.any()]
    largest = means.max().sort_values(ascending=False, kind="stable")
    names = [name for way in ("up", "down") for name in largest.index if name.startswith(way)]
    columns = {str(method): row[names].tolist() for method, row in means.iterrows()}
    drawing = Bars(names, columns, "MB", log=True) if names else None
    return make_figure("communication", drawing)


def _timing_figure(frame: pd.DataFrame) -> Figure:
    stages = frame.dropna(subset="took")
    seeds = frame.groupby("method").run.nunique()
    sums = stages.groupby(["method", "stage"], sort=False).took.sum().unstack("stage", fill_value=0)
    ordered = sums.reindex(index=frame.method.unique(), columns=stages.stage.unique(), fill_value=0)
    means = ordered.div(seeds, axis=0)
    bars = Bars(list(means.index), means.to_dict("list"), "seconds", stacked=True)
    return make_figure("timing", bars if len(stages) else None)

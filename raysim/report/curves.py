"""Figures over rounds (accuracy, loss, labels judged clean), over clients, and of the costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from raysim.report.figure import Bars, Drawing, Figure, Line, Lines, Violins
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


def _figure(
    name: str, title: str, caption: str, drawing: Drawing | None, missing: str = ""
) -> Figure:
    return Figure(name, title, caption, drawing, "" if drawing is not None else missing)


# ---- over rounds ---------------------------------------------------------------------------


def _mean_figures(rounds: pd.DataFrame) -> list[Figure]:
    """Return accuracy and losses of all methods, each as one curve per method."""
    has_seeds = rounds.groupby("series").seed.nunique().max() > 1
    end = f"against rounds of training, megabytes and seconds.{_band(has_seeds)}"
    accuracy = _figure(
        "accuracy",
        "Accuracy",
        f"Mean over clients of the accuracy on their own task, {end}",
        _lines(curves(rounds, "accuracy"), "accuracy", percent=True),
        'No record has "accuracy.mean".',
    )
    test_loss = _figure(
        "test-loss",
        "Test loss",
        f"Mean over clients of the loss on the test images of their own task, {end}",
        _lines(curves(rounds, "test_loss"), "test loss"),
        'No record has "test_loss".',
    )
    training_loss = _figure(
        "training-loss",
        "Training loss",
        f"Mean loss of the clients on their own labels, wrong ones included, {end}",
        _lines(curves(rounds, "loss"), "training loss"),
        'No record has "loss".',
    )
    return [replace(accuracy, is_first=True), test_loss, training_loss]


def _band(has_seeds: bool) -> str:
    return " The band is one sd over seeds." if has_seeds else ""


def _task_figures(rounds: pd.DataFrame, runs: Sequence[Run]) -> list[Figure]:
    """Return accuracy and test loss per task (FB-NLL and RCC-PFL, Fig. 3)."""
    figures = []
    for entry, title in (("accuracy", "Accuracy"), ("loss", "Test loss")):
        names = [name for name in rounds if name.startswith(f"{entry} of task ")]
        lines = [
            line
            for i, name in enumerate(names)
            for line in curves(rounds, name, name.removeprefix(f"{entry} of "), i)
        ]
        lines.sort(key=lambda line: list(rounds.method.unique()).index(line.method))
        figure = _figure(
            f"task-{entry}",
            f"{title} per task",
            "One curve per method and task: the mean over the task's clients (FB-NLL and RCC-PFL, "
            "Fig. 3).",
            _lines(lines, title.lower(), percent=entry == "accuracy"),
            'No record has "by_task".',
        )
        classes = task_names(runs, len({line.dash for line in lines}))
        notes = {f"task {i + 1}": words for i, words in enumerate(classes)}
        figures.append(replace(figure, notes=notes))
    return figures


def _selection_figure(rounds: pd.DataFrame) -> Figure:
    """Return precision and recall of the labels judged clean (FedRN, Fig. 3)."""
    held = rounds.copy()
    scores = ["precision", "recall"]
    held[scores] = held.groupby("run")[scores].ffill()
    lines = [line for i, name in enumerate(scores) for line in curves(held, name, name, i)]
    lines.sort(key=lambda line: list(rounds.method.unique()).index(line.method))
    return _figure(
        "selection",
        "Labels judged clean",
        "Precision: share of truly clean labels among those judged clean; recall: share of clean "
        "labels that were judged so. Means over clients; a judgement stands until the next one "
        "(FedRN, Fig. 3).",
        _lines(lines, "share", percent=True),
        'No record has "selection": no method of these runs judges single labels, or an older '
        "raysim ran them.",
    )


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
    return _figure(
        "relevance",
        "Relevance against eigenvectors",
        "Mean similarity R of two clients when q eigenvectors are compared, for pairs in the same "
        "group and in different ones (FB-NLL, Fig. 5). Far apart is good.",
        Lines(lines, axes, "similarity R") if lines else None,
        "No run has artifacts/relevance_by_rank.npy; set method.grouping.curve to have it "
        "recorded.",
    )


def _f_score_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return the F-scores of labels judged clean by the method, and by the final models."""
    y_label = "F-score of labels judged clean"
    by_method = _figure(
        "f-score",
        "F-score over clients",
        "F-score of a client's labels judged clean, by the clients of the round that judged "
        "last, all seeds together; clients where it is undefined are left out.",
        _violins(runs, lambda run: run.artifact("client_f_score", 1), y_label),
        "No run has artifacts/client_f_score.npy: no method of these runs judges single "
        "labels, or an older raysim ran them.",
    )
    by_models = _figure(
        "f-score-judged",
        "F-score over clients, by the final models",
        "F-score of every client's given labels judged clean by its final model, one rule for "
        "all methods (FedFixer, Fig. 3), all seeds together; clients where it is undefined are "
        "left out.",
        _violins(runs, lambda run: run.artifact("client_f_score_judged", 1), y_label),
        "No run has artifacts/client_f_score_judged.npy: set evaluate.f_score to have it recorded.",
    )
    return [by_method, by_models]


def _client_accuracy_figure(runs: Sequence[Run]) -> Figure:
    return _figure(
        "client-accuracy",
        "Accuracy over clients",
        "Accuracy of every client on its own task in the last round, all seeds together.",
        _violins(runs, lambda run: np.array(per_client(run) or ()), "accuracy"),
        'No record has "per_client", which the last round writes.',
    )


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
    return _figure(
        "communication",
        "Communication by message",
        "Megabytes that all clients sent (up) or received (down) in the whole run, mean over "
        "seeds; logarithmic.",
        Bars(names, columns, "MB", log=True) if names else None,
        'No record has "bytes".',
    )


def _timing_figure(frame: pd.DataFrame) -> Figure:
    stages = frame.dropna(subset="took")
    seeds = frame.groupby("method").run.nunique()
    sums = stages.groupby(["method", "stage"], sort=False).took.sum().unstack("stage", fill_value=0)
    ordered = sums.reindex(index=frame.method.unique(), columns=stages.stage.unique(), fill_value=0)
    means = ordered.div(seeds, axis=0)
    return _figure(
        "timing",
        "Seconds by stage",
        "Wall time of the stages, mean over seeds; setup loads data and starts actors.",
        Bars(list(means.index), means.to_dict("list"), "seconds", stacked=True)
        if len(stages)
        else None,
        'No record has "seconds".',
    )

"""Figures over rounds (accuracy, loss, labels judged clean), and what the rounds cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from raysim.report.facts import Point, per_client, points, task_names
from raysim.report.figure import Bars, Figure, Line, Lines, Violins
from raysim.report.records import Run, numbers
from raysim.report.series import Series
from raysim.runs.record import RoundRecord, finite_number

AXES = {"round": "round", "bytes": "MB sent (up + down)", "seconds": "seconds"}
Value = Callable[[RoundRecord], float | None]
Curve = list[tuple[Point, float]]


def mean_figures(setting: str, series: Sequence[Series]) -> list[Figure]:
    """Return accuracy and losses of all methods, each as one curve per method."""
    band = " The band is one sd over seeds." if any(len(s.runs) > 1 for s in series) else ""
    axes = "against rounds of training, megabytes and seconds"
    kinds = (
        ("accuracy", "Accuracy", "accuracy", ("accuracy", "mean"), True),
        ("test-loss", "Test loss", "test loss", ("test_loss",), False),
        ("training-loss", "Training loss", "training loss", ("loss",), False),
    )
    of = {
        "accuracy": "Mean over clients of the accuracy on their own task",
        "test-loss": "Mean over clients of the loss on the test images of their own task",
        "training-loss": "Mean loss of the clients on their own labels, wrong ones included",
    }
    figures = []
    for name, title, y_label, path, percent in kinds:
        figures.append(
            _curves(
                Figure(
                    name,
                    f"{title}: {setting}",
                    f"{of[name]}, {axes}.{band}",
                    is_first=name == "accuracy",
                ),
                [_line(one, _at(*path)) for one in series],
                Lines([], AXES, y_label, percent=percent),
                f'No record has "{".".join(path)}".',
            )
        )
    return figures


def task_figures(setting: str, series: Sequence[Series]) -> list[Figure]:
    """Return accuracy and test loss per task (FB-NLL and RCC-PFL, Fig. 3)."""
    count = max(
        (len(numbers(r.by_task, "accuracy") or ()) for s in series for r in s.runs[0].records),
        default=0,
    )
    runs = [run for one in series for run in one.runs]
    classes = [name.partition(" (")[2].rstrip(")") for name in task_names(runs, count)]
    notes = {f"task {i + 1}": words for i, words in enumerate(classes) if words}
    figures = []
    for entry, title, percent in (("accuracy", "Accuracy", True), ("loss", "Test loss", False)):
        lines = [_task_line(one, entry, task) for one in series for task in range(count)]
        figure = Figure(
            f"task-{entry}",
            f"{title} per task: {setting}",
            "One curve per method and task: the mean over the task's clients (FB-NLL and RCC-PFL, "
            "Fig. 3).",
            notes=notes,
        )
        missing = 'No record has "by_task".'
        drawing = Lines([], AXES, title.lower(), percent=percent)
        figures.append(_curves(figure, lines, drawing, missing))
    return figures


def selection_figure(setting: str, series: Sequence[Series]) -> Figure:
    """Return precision and recall of the labels judged clean (FedRN, Fig. 3)."""
    lines = [
        _line(one, _at("selection", name), name, dash, hold=True)
        for one in series
        for dash, name in enumerate(("precision", "recall"))
    ]
    figure = Figure(
        "selection",
        f"Labels judged clean: {setting}",
        "Precision: share of truly clean labels among those judged clean; recall: share of clean "
        "labels that were judged so. Means over clients; a judgement stands until the next one "
        "(FedRN, Fig. 3).",
    )
    missing = (
        'No record has "selection": no method of these runs judges single labels, or an older '
        "raysim ran them."
    )
    return _curves(figure, lines, Lines([], AXES, "share", percent=True), missing)


def relevance_figure(setting: str, series: Sequence[Series]) -> Figure:
    """Return relevance against the number of eigenvectors (FB-NLL, Fig. 5)."""
    lines = []
    for one in series:
        found = [run.artifact("relevance_by_rank", 2) for run in one.runs]
        known = [a.astype(float) for a in found if a is not None and a.shape[1] == 2 and len(a)]
        if not known:
            continue
        ranks = min(len(array) for array in known)
        values = np.stack([array[:ranks] for array in known])
        for dash, name in enumerate(("same group", "different groups")):
            x = {"rank": [float(q) for q in range(1, ranks + 1)]}
            lines.append(_banded(one, x, values[:, :, dash], name, dash))
    figure = Figure(
        "relevance",
        f"Relevance against eigenvectors: {setting}",
        "Mean similarity R of two clients when q eigenvectors are compared, for pairs in the same "
        "group and in different ones (FB-NLL, Fig. 5). Far apart is good.",
    )
    missing = (
        "No run has artifacts/relevance_by_rank.npy; set method.grouping.curve to have it recorded."
    )
    axes = {"rank": "eigenvectors compared, q"}
    return _curves(figure, lines, Lines([], axes, "similarity R"), missing)


def f_score_figures(setting: str, series: Sequence[Series]) -> list[Figure]:
    """Return the F-scores of labels judged clean by the method, and by the final models."""
    by_method = Figure(
        "f-score",
        f"F-score over clients: {setting}",
        "F-score of a client's labels judged clean, by the clients of the round that judged "
        "last, all seeds together; clients where it is undefined are left out.",
        missing="No run has artifacts/client_f_score.npy: no method of these runs judges single "
        "labels, or an older raysim ran them.",
    )
    by_models = Figure(
        "f-score-judged",
        f"F-score over clients, by the final models: {setting}",
        "F-score of every client's given labels judged clean by its final model, one rule for "
        "all methods (FedFixer, Fig. 3), all seeds together; clients where it is undefined are "
        "left out.",
        missing="No run has artifacts/client_f_score_judged.npy: set evaluate.f_score to have it "
        "recorded.",
    )
    artifacts = {"client_f_score": by_method, "client_f_score_judged": by_models}
    figures = []
    for name, figure in artifacts.items():
        values = {}
        for one in series:
            found = [run.artifact(name, 1) for run in one.runs]
            known = [array[np.isfinite(array)] for array in found if array is not None]
            if known and len(pooled := np.concatenate(known)):
                values[one.short] = [float(v) for v in pooled]
        figures.append(_violins(figure, values, "F-score of labels judged clean"))
    return figures


def client_accuracy_figure(setting: str, series: Sequence[Series]) -> Figure:
    values = {}
    for one in series:
        pooled = [v for run in one.runs for v in per_client(run) or () if np.isfinite(v)]
        if pooled:
            values[one.short] = pooled
    figure = Figure(
        "client-accuracy",
        f"Accuracy over clients: {setting}",
        "Accuracy of every client on its own task in the last round, all seeds together.",
        missing='No record has "per_client", which the last round writes.',
    )
    return _violins(figure, values, "accuracy")


# ---- costs ---------------------------------------------------------------------------------


def communication_figure(setting: str, series: Sequence[Series]) -> Figure:
    totals: dict[str, dict[str, float]] = {}
    for one in series:
        sums = totals.setdefault(one.short, {})
        for record, way in product([r for run in one.runs for r in run.records], ("up", "down")):
            for message, nbytes in record.messages(way).items():
                key = f"{way}: {message}"
                sums[key] = sums.get(key, 0.0) + nbytes / 1e6 / len(one.runs)
    messages = list(dict.fromkeys(m for found in totals.values() for m in found))
    messages.sort(
        key=lambda m: (not m.startswith("up"), -max(t.get(m, 0) for t in totals.values()))
    )
    figure = Figure(
        "communication",
        f"Communication by message: {setting}",
        "Megabytes that all clients sent (up) or received (down) in the whole run, mean over "
        "seeds; logarithmic.",
    )
    if not messages:
        return replace(figure, missing='No record has "bytes".')
    columns = {label: [found.get(m, 0.0) for m in messages] for label, found in totals.items()}
    return replace(figure, drawing=Bars(messages, columns, "MB", log=True))


def timing_figure(setting: str, series: Sequence[Series]) -> Figure:
    totals: dict[str, dict[str, float]] = {}
    for one in series:
        sums = totals.setdefault(one.short, {})
        for run in one.runs:
            setup = ("setup", finite_number(run.result, "seconds", "setup"))
            stages = [(r.stage or "rounds", r.number("seconds")) for r in run.records]
            for stage, seconds in (setup, *stages):
                if seconds is not None:
                    sums[stage] = sums.get(stage, 0.0) + seconds / len(one.runs)
    names = list(dict.fromkeys(stage for found in totals.values() for stage in found))
    figure = Figure(
        "timing",
        f"Seconds by stage: {setting}",
        "Wall time of the stages, mean over seeds; setup loads data and starts actors.",
    )
    if not names:
        return replace(figure, missing='No record has "seconds".')
    columns = {stage: [found.get(stage, 0.0) for found in totals.values()] for stage in names}
    return replace(figure, drawing=Bars(list(totals), columns, "seconds", stacked=True))


# ---- lines ---------------------------------------------------------------------------------


def _at(*path: str) -> Value:
    return lambda record: record.number(*path)


def _task_line(one: Series, entry: str, task: int) -> Line | None:
    def value(record: RoundRecord) -> float | None:
        found = numbers(record.by_task, entry)
        return found[task] if found is not None and task < len(found) else None

    return _line(one, value, f"task {task + 1}", task)


def _line(
    one: Series, value: Value, name: str = "", dash: int = 0, *, hold: bool = False
) -> Line | None:
    """Return the mean over seeds at the rounds that all of them have, or None."""
    curves = [_curve(run, value, hold=hold) for run in one.runs]
    by_round = [{point.round: (point, y) for point, y in curve} for curve in curves if curve]
    if not by_round:
        return None
    common = sorted(set.intersection(*(set(curve) for curve in by_round)))
    if not common:
        return None
    x = {
        axis: [float(np.mean([getattr(c[r][0], axis) for c in by_round])) for r in common]
        for axis in AXES
    }
    values = np.array([[curve[r][1] for r in common] for curve in by_round])
    return _banded(one, x, values, name, dash)


def _curve(run: Run, value: Value, *, hold: bool) -> Curve:
    """Return the values with their points; ``hold`` repeats a value until the next one."""
    curve: Curve = []
    for point, record in points(run):
        found = value(record)
        if found is not None:
            curve.append((point, found))
        elif hold and curve:
            curve.append((point, curve[-1][1]))
    return curve


def _banded(
    one: Series, x: dict[str, list[float]], values: np.ndarray, name: str, dash: int
) -> Line:
    mean = values.mean(axis=0)
    sd = values.std(axis=0, ddof=1) if len(values) > 1 else None
    return Line(
        name=f"{one.short}, {name}" if name else one.short,
        x=x,
        y=mean.tolist(),
        low=None if sd is None else (mean - sd).tolist(),
        high=None if sd is None else (mean + sd).tolist(),
        method=one.short,
        dash=dash,
    )


def _curves(figure: Figure, lines: Sequence[Line | None], drawing: Lines, missing: str) -> Figure:
    known = [line for line in lines if line is not None]
    if not known:
        return replace(figure, missing=missing)
    return replace(figure, drawing=replace(drawing, lines=known))


def _violins(figure: Figure, values: dict[str, list[float]], y_label: str) -> Figure:
    if not values:
        return figure
    return replace(figure, drawing=Violins(values, y_label), missing="")

"""The tables of a report: each column is a ``groupby`` of the runs in the frame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from raysim.report.frame import LAST, SCORES, task_names
from raysim.report.records import Run
from raysim.report.report import Cell, Table
from raysim.report.statistics import LEVEL, paired_difference

if TYPE_CHECKING:
    import pandas as pd

ALL_PAIRS = 6
"""Every pair of up to this many methods is compared; of more, the best one with each other."""
NONE = Cell("-", None)
RATES = ("precision %", "recall %")


def make_tables(frame: pd.DataFrame, runs: Sequence[Run]) -> list[Table]:
    """Return every table that the runs have rows for; names may repeat."""
    whole = frame[frame.of == "run"]
    progress = {run.series: run.progress for run in reversed(runs)}
    tables = [_summary(whole, runs, progress), _differences(whole)]
    for setting, own in whole.groupby("setting", sort=False):
        tables.append(_tasks(str(setting), own, runs, progress))
    tables += [_judgements(whole, progress), _noisy_clients(whole, progress)]
    return [table for table in tables if table.rows]


# ---- cells ---------------------------------------------------------------------------------


def _names(whole: pd.DataFrame, progress: dict[str, str]) -> list[Cell]:
    return [Cell(name, name, note=progress[name]) for name in whole.series.unique()]


def _column(
    whole: pd.DataFrame,
    name: str,
    scale: float = 1,
    digits: int = 2,
    *,
    best: bool = False,
    with_sd: bool = True,
) -> list[Cell]:
    """Return a cell per series: the mean of a value over seeds, and the values on hover."""
    values = (whole[name] * scale).groupby(whole.series, sort=False)
    stats = values.agg(["mean", "std", list])
    seeds = whole.groupby("series", sort=False).seed.agg(list)
    top = best_series(whole, name) if best else []
    cells = []
    for series, mean, sd, single in stats.itertuples():
        text = f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if with_sd and sd == sd else "")
        shown = ["-" if math.isnan(value) else f"{value:.4g}" for value in single]
        note = "; ".join(f"seed {s}: {v}" for s, v in zip(seeds[series], shown, strict=True))
        found = Cell(text, mean, best=series in top, note=note if len(shown) > 1 else "")
        cells.append(NONE if math.isnan(mean) else found)
    return cells


def best_series(whole: pd.DataFrame, name: str) -> list[str]:
    """Return the best finished series of every setting that has several; ties share it."""
    done = whole[whole.finished]
    means = done.groupby(["setting", "series"], sort=False)[name].mean().dropna()
    by_setting = means.groupby(level="setting", sort=False)
    is_best = (means == by_setting.transform("max")) & (by_setting.transform("size") > 1)
    return list(means[is_best].index.get_level_values("series"))


def _rows(*columns: Sequence[Cell]) -> list[list[Cell]]:
    return [list(row) for row in zip(*columns, strict=True)]


# ---- summary -------------------------------------------------------------------------------


def _summary(whole: pd.DataFrame, runs: Sequence[Run], progress: dict[str, str]) -> Table:
    seeds = []
    for series, own in whole.groupby("series", sort=False):
        count, note = str(len(own)), "seeds " + ", ".join(map(str, own.seed))
        first = next(run for run in runs if run.series == series)
        if not first.is_finished:
            note += f"; {first.progress}"
            count += f" ({first.rounds_done}/{first.rounds} rounds)"
        seeds.append(Cell(count, float(len(own)), note=note))
    has_top5 = bool(whole.top5.notna().any())
    return Table(
        name="summary",
        title="Summary",
        caption=(
            "Mean ± sample sd over seeds of the mean accuracy over clients, each on its own task: "
            f"in the last round, over the last {LAST} evaluations, and the best one (which a "
            "real federation could not pick). Best in bold among finished runs of one setting. "
            "ARI: agreement of groups and tasks. Noise: share of wrong training labels before and "
            "after correction. MB, seconds and restarts: mean over seeds."
        ),
        columns=[
            *("method", "seeds", "accuracy %", f"last {LAST} %", "best %"),
            *(["top-5 %"] if has_top5 else []),
            *("ARI", "noise before %", "noise after %", "up MB", "down MB", "seconds", "restarts"),
        ],
        rows=_rows(
            _names(whole, progress),
            seeds,
            *(_column(whole, name, 100, best=True) for name in ("accuracy", "last", "best")),
            *([_column(whole, "top5", 100)] if has_top5 else []),
            _column(whole, "ari", digits=3),
            *(_column(whole, f"noise_{when}", 100) for when in ("before", "after")),
            *(_column(whole, way, with_sd=False) for way in ("up", "down")),
            _column(whole, "total_seconds", digits=1, with_sd=False),
            _column(whole, "restarts", digits=0, with_sd=False),
        ),
    )


# ---- differences ---------------------------------------------------------------------------


def _differences(whole: pd.DataFrame) -> Table:
    rows = []
    for _, own in whole[whole.finished].groupby("setting", sort=False):
        by_seed = {
            str(series): dict(zip(known.seed, known.accuracy, strict=True))
            for series, known in own.dropna(subset="accuracy").groupby("series", sort=False)
        }
        pairs = list(combinations(by_seed, 2))
        if len(by_seed) > ALL_PAIRS:
            top = best_series(own, "accuracy")[:1]
            pairs = [(one, other) for one in top for other in by_seed if other != one]
        rows += [_difference_row(*pair, by_seed) for pair in pairs]
    return Table(
        name="differences",
        title="Paired differences",
        caption=(
            "Accuracy of the first method minus that of the second, in points, over the seeds both "
            f"have: mean and {LEVEL:.0%} interval (Student's t, n - 1 degrees of freedom; not "
            "corrected for the number of comparisons). With one common seed there is no interval. "
            f"Every pair of up to {ALL_PAIRS} methods; of more, the best one against each other."
        ),
        columns=["method", "minus", "difference", "interval", "common seeds"],
        rows=[row for row in rows if row],
    )


def _difference_row(ours: str, theirs: str, by_seed: dict[str, dict[int, float]]) -> list[Cell]:
    found = paired_difference(by_seed[ours], by_seed[theirs])
    if found is None:
        return []
    interval = Cell("-", None, note="one common seed")
    if found.low is not None and found.high is not None:
        text = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
        interval = Cell(text, 100 * found.low)
    return [
        Cell(ours, ours),
        Cell(theirs, theirs),
        Cell(f"{100 * found.mean:+.2f}", 100 * found.mean),
        interval,
        Cell(str(found.n), float(found.n)),
    ]


# ---- tasks and clients ---------------------------------------------------------------------


def _tasks(
    setting: str, whole: pd.DataFrame, runs: Sequence[Run], progress: dict[str, str]
) -> Table:
    entries = [name for name in whole if name.startswith("accuracy of task ")]
    entries = [name for name in entries if whole[name].notna().any()]
    has_tasks = whole[entries].notna().any(axis=1).groupby(whole.series).transform("any")
    own = whole[has_tasks] if entries else whole[:0]
    tasks = [name.removeprefix("accuracy of ") for name in entries]
    classes = task_names([run for run in runs if run.label in set(own.run)], len(tasks))
    named = [f"{task} ({words})" for task, words in zip(tasks, classes, strict=False)]
    return Table(
        name="tasks",
        title=f"Accuracy per task: {setting}",
        caption=(
            "Per cent in the last round, mean ± sd over seeds; the lowest accuracy of a client, "
            "and the sd over clients." + (f" Classes: {'; '.join(named)}." if named else "")
        ),
        columns=["method", *tasks, "worst client", "sd over clients"],
        rows=_rows(
            _names(own, progress),
            *(_column(own, name, 100, best=True) for name in entries),
            _column(own, "worst", 100),
            _column(own, "sd_of_clients", 100),
        ),
    )


def _judgements(whole: pd.DataFrame, progress: dict[str, str]) -> Table:
    """Return how well single labels were judged, by methods and by final models."""
    rows = []
    for _, own in whole.groupby("series", sort=False):
        for key, who in (("selection", "the method"), ("judged", "the final model")):
            if own[key].notna().any():
                scores = [*(f"{key}.{name}" for name in SCORES), f"{key}_of_wrong"]
                columns = [_column(own, score, 100) for score in scores]
                rows += _rows(_names(own, progress), [Cell(who, who)], *columns)
    return Table(
        name="judgements",
        title="How well labels were judged",
        caption=(
            "The newest judgement, means over the clients that made it: precision and recall of "
            "the labels judged clean, their F-score, and the F-score of the others as wrong labels "
            "(clients without any are left out). The final model judges the given labels by one "
            "rule for all methods (evaluate.f_score)."
        ),
        columns=["method", "judged by", *RATES, "F-score %", "F-score of wrong %"],
        rows=rows,
    )


def _noisy_clients(whole: pd.DataFrame, progress: dict[str, str]) -> Table:
    """Return how well clients with noise were found, by the methods that look for them."""
    own = whole[whole.noisy_clients.groupby(whole.series).transform("count") > 0]
    return Table(
        name="noisy-clients",
        title="Clients taken for noisy",
        caption=(
            "The newest judgement of the methods that make one, against the clients that hold a "
            "wrong label (after FB-NLL's repair, where it came first); AUROC of the scores behind "
            "it; correlation of estimated and true shares of wrong labels."
        ),
        columns=["method", "found", *RATES, "F1 %", "AUROC %", "correlation"],
        rows=_rows(
            _names(own, progress),
            _column(own, "noisy.found", digits=1, with_sd=False),
            *(
                _column(own, f"noisy.{name}", 100)
                for name in ("precision", "recall", "f1", "auroc")
            ),
            _column(own, "noisy.correlation", digits=3),
        ),
    )

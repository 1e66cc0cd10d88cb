"""The tables of a report: each column is a ``groupby`` of the runs in the frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from raysim.report.figure import words
from raysim.report.frame import LAST, SCORES, task_names
from raysim.report.records import Run
from raysim.report.report import Cell, Table
from raysim.report.statistics import LEVEL, paired_difference

if TYPE_CHECKING:
    import pandas as pd

ALL_PAIRS = 6
"""Every pair of up to this many methods is compared; of more, the best one with each other."""
NONE = Cell("-", None)


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


def _rows(columns: Iterable[Sequence[Cell]]) -> list[list[Cell]]:
    return [list(row) for row in zip(*columns, strict=True)]


def _table(
    name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], **values: object
) -> Table:
    """Return a table with its words, filled with values."""
    said = words()["tables"][name]
    title, caption = said["title"].format(**values), said["caption"].format(**values)
    return Table(name, title, caption, columns, rows)


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
    columns = {
        "method": _names(whole, progress),
        "seeds": seeds,
        "accuracy %": _column(whole, "accuracy", 100, best=True),
        f"last {LAST} %": _column(whole, "last", 100, best=True),
        "best %": _column(whole, "best", 100, best=True),
        "top-5 %": _column(whole, "top5", 100),
        "ARI": _column(whole, "ari", digits=3),
        "noise before %": _column(whole, "noise_before", 100),
        "noise after %": _column(whole, "noise_after", 100),
        "up MB": _column(whole, "up", with_sd=False),
        "down MB": _column(whole, "down", with_sd=False),
        "seconds": _column(whole, "total_seconds", digits=1, with_sd=False),
        "restarts": _column(whole, "restarts", digits=0, with_sd=False),
    }
    if whole.top5.isna().all():
        del columns["top-5 %"]
    return _table("summary", list(columns), _rows(columns.values()), last=LAST)


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
    columns = ["method", "minus", "difference", "interval", "common seeds"]
    known = [row for row in rows if row]
    return _table("differences", columns, known, level=LEVEL, pairs=ALL_PAIRS)


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
    named = [f"{task} ({text})" for task, text in zip(tasks, classes, strict=False)]
    columns = {
        "method": _names(own, progress),
        **{t: _column(own, e, 100, best=True) for t, e in zip(tasks, entries, strict=True)},
        "worst client": _column(own, "worst", 100),
        "sd over clients": _column(own, "sd_of_clients", 100),
    }
    said = f" Classes: {'; '.join(named)}." if named else ""
    rows = _rows(columns.values())
    return _table("tasks", list(columns), rows, setting=setting, classes=said)


def _judgements(whole: pd.DataFrame, progress: dict[str, str]) -> Table:
    """Return how well single labels were judged, by methods and by final models."""
    rows = []
    for _, own in whole.groupby("series", sort=False):
        for key, who in (("selection", "the method"), ("judged", "the final model")):
            if own[key].notna().any():
                scores = [*(f"{key}.{name}" for name in SCORES), f"{key}_of_wrong"]
                cells = [_column(own, score, 100) for score in scores]
                rows += _rows([_names(own, progress), [Cell(who, who)], *cells])
    columns = ["method", "judged by", "precision %", "recall %", "F-score %", "F-score of wrong %"]
    return _table("judgements", columns, rows)


def _noisy_clients(whole: pd.DataFrame, progress: dict[str, str]) -> Table:
    """Return how well clients with noise were found, by the methods that look for them."""
    own = whole[whole.noisy_clients.groupby(whole.series).transform("count") > 0]
    columns = {
        "method": _names(own, progress),
        "found": _column(own, "noisy.found", digits=1, with_sd=False),
        "precision %": _column(own, "noisy.precision", 100),
        "recall %": _column(own, "noisy.recall", 100),
        "F1 %": _column(own, "noisy.f1", 100),
        "AUROC %": _column(own, "noisy.auroc", 100),
        "correlation": _column(own, "noisy.correlation", digits=3),
    }
    return _table("noisy-clients", list(columns), _rows(columns.values()))

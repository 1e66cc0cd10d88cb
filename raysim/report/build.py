"""From run directories to a report: its tables, and its figures in the order a reader asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from raysim import __version__
from raysim.report.curves import setting_figures
from raysim.report.figure import Figure
from raysim.report.frame import make_frame
from raysim.report.grouping import grouping_figures
from raysim.report.labels import label_figures
from raysim.report.ran import what_ran
from raysim.report.records import Run, read_runs
from raysim.report.report import Report, Table
from raysim.report.series import name_runs
from raysim.report.swept import check_swept, swept_figures
from raysim.report.tables import make_tables

if TYPE_CHECKING:
    import pandas as pd

Named = TypeVar("Named", Figure, Table)


def make_report(places: Sequence[str], title: str = "", swept: Sequence[str] = ()) -> Report:
    """Read run directories (paths, URLs, folders of runs) and work out tables and figures.

    The first figures are against the settings that were ``swept``, given as dotted keys.
    """
    found, problems = read_runs(places)
    check_swept(swept, found)
    runs, remarks = name_runs(found, swept)
    frame = make_frame(runs)
    tables = _numbered(make_tables(frame, runs))
    figures = _numbered([*swept_figures(frame, runs, swept), *_make_figures(frame, runs)])
    damaged = [problem for run in runs for problem in run.problems]
    if not title:
        methods = list(dict.fromkeys(run.method for run in runs))
        names = ", ".join(methods) if len(methods) <= 5 else f"{len(methods)} methods"
        data = dict.fromkeys(run.dataset or "unnamed data" for run in runs)
        title = f"{names} on {', '.join(data)}"
    return Report(
        title=title,
        made=f"raysim {__version__}",
        tables=tables,
        figures=figures,
        methods=list(dict.fromkeys(run.short for run in runs)),
        configs={run.label: run.yaml for run in runs},
        environments={run.label: run.environment for run in runs},
        problems=[*problems, *remarks, *damaged],
        ran=what_ran(runs),
    )


def _make_figures(frame: pd.DataFrame, runs: Sequence[Run]) -> list[Figure]:
    """Return all figures; those without data say what the runs lack."""
    compared = [
        setting_figures(str(setting), own, [run for run in runs if run.setting == setting])
        for setting, own in frame.groupby("setting", sort=False)
    ]
    figures: list[Figure] = []
    for kind in zip(*compared, strict=True):  # those with data, or one that says what is missing
        lacking = replace(kind[0], title=kind[0].title.partition(": ")[0])
        figures += [figure for figure in kind if figure.drawing is not None] or [lacking]
    first = list({run.series: run for run in reversed(runs)}.values())[::-1]
    several = {run.label for run in first if [r.series for r in runs].count(run.series) > 1}
    for figure in (*grouping_figures(first), *label_figures(first)):
        seed = " The first seed only." if figure.run in several else ""
        figures.append(replace(figure, caption=figure.caption + seed))
    return figures


def _numbered(items: Sequence[Named]) -> list[Named]:
    """Return tables or figures with a name each: those of the same name get a number."""
    seen: dict[str, int] = {}
    named = []
    for item in items:
        seen[item.name] = count = seen.get(item.name, 0) + 1
        named.append(item if count == 1 else replace(item, name=f"{item.name}-{count}"))
    return named

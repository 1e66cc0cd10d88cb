"""From run directories to a report: its tables, and its figures in the order a reader asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from raysim import __version__
from raysim.report import curves
from raysim.report.figure import Figure
from raysim.report.grouping import grouping_figures
from raysim.report.labels import label_figures
from raysim.report.ran import what_ran
from raysim.report.records import read_runs
from raysim.report.report import Report, Table
from raysim.report.series import Series, by_setting, group_runs
from raysim.report.swept import check_swept, swept_figures
from raysim.report.tables import make_tables

Named = TypeVar("Named", Figure, Table)


def make_report(places: Sequence[str], title: str = "", swept: Sequence[str] = ()) -> Report:
    """Read run directories (paths, URLs, folders of runs) and work out tables and figures.

    The first figures are against the settings that were ``swept``, given as dotted keys.
    """
    found, problems = read_runs(places)
    check_swept(swept, found)
    series, remarks = group_runs(found, swept)
    runs = [run for one in series for run in one.runs]
    tables, figures = (
        _numbered(make_tables(series)),
        _numbered([*swept_figures(series, swept), *_make_figures(series)]),
    )
    damaged = [problem for run in runs for problem in run.problems]
    if not title:
        methods = list(dict.fromkeys(run.method for run in runs))
        names = ", ".join(methods) if len(methods) <= 5 else f"{len(methods)} methods"
        data = dict.fromkeys(one.runs[0].dataset or "unnamed data" for one in series)
        title = f"{names} on {', '.join(data)}"
    return Report(
        title=title,
        made=f"raysim {__version__}",
        tables=tables,
        figures=figures,
        methods=list(dict.fromkeys(one.short for one in series)),
        configs={run.label: run.yaml for run in runs},
        environments={run.label: run.environment for run in runs},
        problems=[*problems, *remarks, *damaged],
        ran=what_ran(series),
    )


def _make_figures(series: Sequence[Series]) -> list[Figure]:
    """Return all figures; those without data say what the runs lack."""
    compared = [
        [
            *curves.mean_figures(setting, own),
            *curves.task_figures(setting, own),
            curves.client_accuracy_figure(setting, own),
            curves.relevance_figure(setting, own),
            curves.selection_figure(setting, own),
            *curves.f_score_figures(setting, own),
            curves.communication_figure(setting, own),
            curves.timing_figure(setting, own),
        ]
        for setting, own in by_setting(series).items()
    ]
    figures: list[Figure] = []
    for kind in zip(*compared, strict=True):  # those with data, or one that says what is missing
        lacking = replace(kind[0], title=kind[0].title.partition(": ")[0])
        figures += [figure for figure in kind if figure.drawing is not None] or [lacking]
    first = [one.runs[0] for one in series]
    several = {one.runs[0].label for one in series if len(one.runs) > 1}
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

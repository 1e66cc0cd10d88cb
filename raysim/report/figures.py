"""Every figure of a report, in the order in which a reader asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysim.report import curves
from raysim.report.figure import Figure
from raysim.report.grouping import grouping_figures
from raysim.report.labels import label_figures
from raysim.report.series import Series, by_setting

FIRST_SEED = "The first seed only."


def make_figures(series: Sequence[Series]) -> list[Figure]:
    """Return all figures; those without data say what the runs lack."""
    settings = by_setting(series)
    compared: list[list[Figure]] = []
    for setting, own in settings.items():
        compared.append(
            [
                *curves.mean_figures(setting, own),
                *curves.task_figures(setting, own),
                curves.client_accuracy_figure(setting, own),
                curves.relevance_figure(setting, own),
                curves.selection_figure(setting, own),
                curves.f_score_figure(setting, own),
                curves.judged_figure(setting, own),
                curves.communication_figure(setting, own),
                curves.timing_figure(setting, own),
            ]
        )
    together = [figure for kind in zip(*compared, strict=True) for figure in _known(kind)]
    first = [one.runs[0] for one in series]
    seeds = {one.runs[0].label for one in series if len(one.runs) > 1}
    single = [*grouping_figures(first), *label_figures(first)]
    noted = [_with_seed(figure) if figure.run in seeds else figure for figure in single]
    return _own_names([*together, *noted])


def _known(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures of one kind that have data, or one that says what is missing."""
    return [f for f in figures if f.drawing is not None] or [
        replace(figures[0], title=figures[0].title.partition(": ")[0])
    ]


def _with_seed(figure: Figure) -> Figure:
    return replace(figure, caption=f"{figure.caption} {FIRST_SEED}")


def _own_names(figures: Sequence[Figure]) -> list[Figure]:
    """Return the figures with a name each: those of the same name get a number."""
    seen: dict[str, int] = {}
    named = []
    for figure in figures:
        seen[figure.name] = count = seen.get(figure.name, 0) + 1
        named.append(figure if count == 1 else replace(figure, name=f"{figure.name}-{count}"))
    return named

"""Figures against a setting that was swept: a line per method, with its spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysim.errors import ConfigError
from raysim.report import facts
from raysim.report.figure import Figure, Line, Lines
from raysim.report.records import Run
from raysim.report.series import Series, differences, setting_of
from raysim.report.statistics import mean_over_seeds

Value = float | str


def _megabytes(run: Run) -> float | None:
    ways = [facts.megabytes(run, way) for way in ("up", "down")]
    return None if None in ways else sum(filter(None, ways))


MEASURES: dict[str, tuple[str, str, Callable[[Run], float | None]]] = {
    "accuracy": ("Accuracy", "accuracy", facts.accuracy),
    "noise": ("Noise left", "share of wrong labels", lambda run: facts.noise(run, "after")),
    "ari": ("ARI", "ARI of groups and tasks", facts.ari),
    "bytes": ("MB sent", "MB sent (up + down)", _megabytes),
}
"""By name: title, label of the axis, and the value of a run."""
FRACTIONS = ("accuracy", "noise")


def check_swept(swept: Sequence[str], runs: Sequence[Run]) -> None:
    """Refuse settings that no run has."""
    for key in swept:
        if not any(_has(run.config, key) for run in runs):
            raise ConfigError(
                f"swept must name settings of the runs, got {key!r}, which none of their configs "
                "has; name one as config.yaml does, such as data.noise.rate"
            )


def swept_figures(series: Sequence[Series], swept: Sequence[str]) -> list[Figure]:
    """Return every measure against the first swept setting, a figure per value of the others."""
    if not swept:
        return []
    x_key, finished = swept[0], [one for one in series if one.is_finished]
    varied = [one for one in finished if _has(one.runs[0].config, x_key)]
    values = sort_values({_value(one.runs[0], x_key) for one in varied})
    rests = [_rest(one, swept) for one in varied]
    panels: dict[str, list[Series]] = {}
    for one, rest in zip(varied, rests, strict=True):
        panels.setdefault(differences(rest, rests), []).append(one)
    fixed = [one for one in finished if one not in varied]
    for one in fixed:  # a method without the setting is the same everywhere
        rest = _rest(one, swept)
        for name in panels if rest not in rests else [differences(rest, rests)]:
            panels[name].append(one)
    figures = [
        _figure(measure, x_key, values, name, own)
        for measure in MEASURES
        for name, own in (panels or {"": []}).items()
    ]
    return [_common_range(figure, figures) for figure in figures]


def sort_values(values: set[Value]) -> list[Value]:
    """Return numbers ascending, then words; all are words where some are."""
    ordered = sorted(values, key=lambda value: (isinstance(value, str), value))
    return list(map(_word, ordered)) if any(isinstance(v, str) for v in values) else ordered


def is_log_spaced(values: Sequence[Value]) -> bool:
    """Whether numbers grow by about the same factor and not by about the same amount."""
    known = [value for value in values if isinstance(value, float)]
    if len(known) < 3 or len(known) < len(values) or known[0] <= 0:
        return False
    factors, steps = np.diff(np.log(known)), np.diff(known)
    return bool(factors.max() <= 1.5 * factors.min() and steps.max() > 1.5 * steps.min())


def _figure(
    measure: str, x_key: str, values: Sequence[Value], panel: str, series: Sequence[Series]
) -> Figure:
    title, y_label, value_of = MEASURES[measure]
    figure = Figure(
        f"swept-{measure}",
        f"{title} against {x_key}" + (f": {panel}" if panel else ""),
        f"{title} at the end of finished runs, mean over seeds; the band is one sd over seeds.",
        tab=title,
    )
    methods: dict[str, list[Series]] = {}
    for one in series:
        methods.setdefault(one.short, []).append(one)
    lines = [
        line
        for name, own in methods.items()
        if (line := _line(name, own, x_key, values, value_of)) is not None
    ]
    if not lines:
        return replace(figure, missing=f"No finished run has a value for {y_label}.")
    return replace(
        figure,
        drawing=Lines(
            lines,
            {"value": x_key},
            y_label,
            percent=measure in FRACTIONS,
            log=is_log_spaced(values),
            categories=[value for value in values if isinstance(value, str)],
        ),
    )


def _line(
    name: str,
    series: Sequence[Series],
    x_key: str,
    values: Sequence[Value],
    value_of: Callable[[Run], float | None],
) -> Line | None:
    words = any(isinstance(value, str) for value in values)
    points: dict[Any, tuple[float, float | None]] = {}
    is_fixed = not _has(series[0].runs[0].config, x_key)
    for one in series:
        found = mean_over_seeds([value_of(run) for run in one.runs])
        if found is not None:
            own = values if is_fixed else [_value(one.runs[0], x_key)]
            points |= {_word(x) if words else x: (found.mean, found.sd) for x in own}
    xs = [x for x in values if x in points]
    if not xs:
        return None
    mean = [points[x][0] for x in xs]
    sd = [points[x][1] or 0.0 for x in xs]
    banded = any(sd)
    return Line(
        name=f"{name} (does not have it)" if is_fixed else name,
        x={"value": xs},
        y=mean,
        low=[m - s for m, s in zip(mean, sd, strict=True)] if banded else None,
        high=[m + s for m, s in zip(mean, sd, strict=True)] if banded else None,
        method=name,
        dash=int(is_fixed),
    )


def _common_range(figure: Figure, figures: Sequence[Figure]) -> Figure:
    """Return the figure with the vertical range of all figures of its measure."""
    alike = [f.drawing for f in figures if f.tab == figure.tab and isinstance(f.drawing, Lines)]
    if not isinstance(figure.drawing, Lines) or len(alike) < 2:
        return figure
    ends = [y for lines in alike for line in lines.lines for y in (line.low or line.y)]
    ends += [y for lines in alike for line in lines.lines for y in (line.high or line.y)]
    room = 0.05 * (max(ends) - min(ends)) or 0.05
    y_range = (min(ends) - room, max(ends) + room)
    return replace(figure, drawing=replace(figure.drawing, y_range=y_range))


# ---- values of configs ---------------------------------------------------------------------


def _rest(one: Series, swept: Sequence[str]) -> dict[str, Any]:
    """Return the setting without the first swept key."""
    setting = setting_of(one.runs[0], swept)
    x_key = swept[0]
    return {k: v for k, v in setting.items() if k != x_key and not k.startswith(f"{x_key}.")}


def _has(config: Mapping[str, Any], key: str) -> bool:
    return _find(config, key) is not _find


def _find(config: Any, key: str) -> Any:
    """Return the value at a dotted key; this function itself where there is none."""
    for name in key.split("."):
        if not isinstance(config, Mapping) or name not in config:
            return _find
        config = config[name]
    return config


def _value(run: Run, key: str) -> Value:
    """Return a number, or what people call any other value."""
    found = _find(run.config, key)
    if isinstance(found, Mapping):  # a choice, such as data.noise
        found = found.get("name") or found.get("kind") or dict(found)
    if isinstance(found, bool):
        return "on" if found else "off"
    if isinstance(found, int | float) and math.isfinite(found):
        return float(found)
    return "none" if found is None else str(found)


def _word(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"

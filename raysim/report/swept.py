"""Figures against a setting that was swept: a line per method, with its spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import ConfigError
from raysim.report.curves import banded
from raysim.report.figure import Figure, Line, Lines
from raysim.report.records import Run
from raysim.report.series import setting_of, telling_keys, words

if TYPE_CHECKING:
    import pandas as pd

Value = float | str
MEASURES = {
    "accuracy": ("Accuracy", "accuracy"),
    "noise_after": ("Noise left", "share of wrong labels"),
    "ari": ("ARI", "ARI of groups and tasks"),
    "bytes": ("MB sent", "MB sent (up + down)"),
}
"""By column of the frame: the title, and the label of the axis."""
FRACTIONS = ("accuracy", "noise_after")


def check_swept(swept: Sequence[str], runs: Sequence[Run]) -> None:
    """Refuse settings that no run has."""
    for key in swept:
        if not any(_has(run, key) for run in runs):
            raise ConfigError(
                f"swept must name settings of the runs, got {key!r}, which none of their configs "
                "has; name one as config.yaml does, such as data.noise.rate"
            )


def swept_figures(frame: pd.DataFrame, runs: Sequence[Run], swept: Sequence[str]) -> list[Figure]:
    """Return every measure against the first swept setting, a figure per value of the others."""
    if not swept:
        return []
    key, finished = swept[0], [run for run in runs if run.is_finished]
    values = {run.label: _value(run, key) for run in finished if _has(run, key)}
    ordered = sort_values(set(values.values()))
    points = _points(frame, finished, swept, ordered)
    panels = list(dict.fromkeys(points.panel)) or [""]
    figures = []
    for measure, (title, y_label) in MEASURES.items():
        known = points.dropna(subset=measure)
        drawn = {panel: _lines(known[known.panel == panel], measure, ordered) for panel in panels}
        y_range = _range(drawn) if len(panels) > 1 else None
        for panel, lines in drawn.items():
            drawing = Lines(
                lines,
                {"value": key},
                y_label,
                percent=measure in FRACTIONS,
                log=is_log_spaced(ordered),
                categories=[value for value in ordered if isinstance(value, str)],
                y_range=y_range,
            )
            figures.append(
                Figure(
                    f"swept-{measure.partition('_')[0]}",
                    f"{title} against {key}" + (f": {panel}" if panel else ""),
                    f"{title} at the end of finished runs, mean over seeds; the band is one sd "
                    "over seeds.",
                    drawing if lines else None,
                    "" if lines else f"No finished run has a value for {y_label}.",
                    tab=title,
                )
            )
    return figures


def _points(
    frame: pd.DataFrame, runs: Sequence[Run], swept: Sequence[str], ordered: Sequence[Value]
) -> pd.DataFrame:
    """Return finished runs with their value ``x`` of the setting and the panel they belong to.

    A method without the setting is the same everywhere: its runs are repeated at every value and,
    where their panel is none of the others', in every panel.
    """
    import pandas as pd

    key = swept[0]
    rests = {run.label: setting_of(run, swept, without=key) for run in runs}
    varied = [rests[run.label] for run in runs if _has(run, key)]
    telling = telling_keys(varied)
    names = list(dict.fromkeys(words(rest, telling) for rest in varied))
    places = []
    for run in runs:
        is_fixed, rest = not _has(run, key), rests[run.label]
        value = _value(run, key)
        xs = ordered if is_fixed else [value if value in ordered else _word(value)]
        panels = [words(rest, telling)] if rest in varied else names
        places += [(run.label, x, panel, is_fixed) for panel in panels for x in xs]
    places_frame = pd.DataFrame(places, columns=["run", "x", "panel", "is_fixed"])
    return places_frame.merge(frame[frame.of == "run"], on="run")


def _lines(points: pd.DataFrame, measure: str, ordered: Sequence[Value]) -> list[Line]:
    lines = []
    for (method, is_fixed), own in points.groupby(["method", "is_fixed"], sort=False):
        stats = own.groupby("x")[measure].agg(["mean", "std"])
        stats = stats.loc[[x for x in ordered if x in stats.index]]
        sd = stats["std"] if stats["std"].isna().all() else stats["std"].fillna(0.0)
        name = f"{method} (does not have it)" if is_fixed else str(method)
        x = {"value": stats.index.tolist()}
        lines.append(banded(name, str(method), x, stats["mean"], sd, int(is_fixed)))
    return lines


def _range(drawn: Mapping[str, Sequence[Line]]) -> tuple[float, float]:
    """Return one vertical range for all panels, with some room."""
    lines = [line for own in drawn.values() for line in own]
    ends = [y for line in lines for y in (*(line.low or line.y), *(line.high or line.y))]
    room = 0.05 * (max(ends, default=1.0) - min(ends, default=0.0)) or 0.05
    return min(ends, default=0.0) - room, max(ends, default=1.0) + room


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


# ---- values of configs ---------------------------------------------------------------------


def _has(run: Run, key: str) -> bool:
    return _find(run.config, key) is not _find


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

"""Figures as PNG and PDF, drawn by matplotlib without its global state."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from raysim.errors import EnvironmentNotFit
from raysim.report.figure import (
    Bars,
    Dendrogram,
    Drawing,
    Figure,
    Heatmap,
    Line,
    Lines,
    Panels,
    Violins,
)

COLOURS = [
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
    "#000000",  # black
    "#B8A800",  # yellow, darkened: the original is too light for lines on paper
]
"""Of methods by their place in ``Report.methods``, and of groups of clients by their number.

Colour-blind readers can tell them apart (the set of Okabe and Ito); from the ninth on they repeat.
"""
HEAT = "viridis"
"""The colour scale of heat maps, by the name that matplotlib and plotly share."""
WIDTH, HEIGHT = 7.0, 4.2
"""Inches of an ordinary figure: the text width of a page."""
DPI = 160
MOST_TICKS = 30
"""Names along an axis of a heat map or of bars; of more names some are left out."""
MOST_LEAF_NAMES = 60
"""A dendrogram of more leaves names none of them."""
MOST_VALUES = 12
"""Swept values that are marked on their axis; more leave the marks to the axis."""
MOST_TOGETHER = 8
"""Curves in one pair of axes; more are split by their dashes (tasks), one pair each."""
DASHES = [
    "-",
    "--",
    ":",
    "-.",
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (8, 3)),
    (0, (3, 1, 1, 1)),
]
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def draw(figure: Figure, methods: Sequence[str], form: str = "png") -> bytes:
    """Return the picture of a figure that has a drawing; ``form`` is "png" or "pdf".

    Equal figures give equal bytes.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Canvas
    except ImportError as wrong:
        raise EnvironmentNotFit(
            f"pictures need matplotlib, which is not there ({wrong}); pip install 'raysim[report]'"
        ) from wrong
    assert figure.drawing is not None
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in any script
        canvas = Canvas(figsize=_size(figure.drawing), layout="constrained")
        FigureCanvasAgg(canvas)
        canvas.suptitle(_text(figure.title), fontsize=11)
        match figure.drawing:
            case Lines() as lines:
                _draw_lines(canvas, lines, list(methods))
            case Heatmap() as heatmap:
                _draw_heatmap(canvas, canvas.subplots(), heatmap)
            case Dendrogram() as dendrogram:
                _draw_dendrogram(canvas.subplots(), dendrogram)
            case Bars() as bars:
                _draw_bars(canvas.subplots(), bars, list(methods))
            case Panels() as panels:
                _draw_panels(canvas, panels)
            case Violins() as violins:
                _draw_violins(canvas.subplots(), violins, list(methods))
        filled = io.BytesIO()
        stamp = {"CreationDate": None} if form == "pdf" else {"Software": None}
        canvas.savefig(filled, format=form, dpi=DPI, metadata=stamp)
    return filled.getvalue()


def _size(drawing: Drawing) -> tuple[float, float]:
    match drawing:
        case Lines():
            rows = len(_split(drawing.lines)) if len(drawing.x_labels) > 1 else 1
            wide = WIDTH * (1.35 if len(drawing.x_labels) > 1 else 1.0)
            return wide, max(HEIGHT, 2.1 * rows + 1.2)
        case Heatmap():
            return WIDTH, _map_height(drawing)
        case Panels():
            tallest = max(map(_map_height, drawing.panels.values()))
            return max(WIDTH, 3.6 * len(drawing.panels) + 0.8), min(tallest, 6.5)
        case Dendrogram():
            return WIDTH, HEIGHT
        case Bars():
            bars = len(drawing.categories) * (1 if drawing.stacked else len(drawing.series))
            return min(10.0, max(WIDTH, 0.16 * bars)), HEIGHT + (1.0 if bars > 40 else 0.4)
        case Violins():
            return min(14.0, max(WIDTH, 1.0 * len(drawing.values))), HEIGHT


def _map_height(drawing: Heatmap) -> float:
    rows, columns = drawing.values.shape
    return float(np.clip(WIDTH * 0.82 * rows / max(columns, 1), 3.2, 7.5))


# ---- curves --------------------------------------------------------------------------------


def _split(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the curves of each pair of axes: all, or one dash each where they are many."""
    dashes = sorted({line.dash for line in lines})
    if len(lines) <= MOST_TOGETHER or len(dashes) == 1:
        return [list(lines)]
    return [[line for line in lines if line.dash == dash] for dash in dashes]


def _draw_lines(canvas: Any, drawing: Lines, methods: list[str]) -> None:
    """Draw one row of axes per part and one column per choice of the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    parts = _split(drawing.lines)
    grid = canvas.subplots(
        len(parts), len(drawing.x_labels), squeeze=False, sharey=True, sharex="col"
    )
    for row, part in zip(grid, parts, strict=True):
        for axes, axis in zip(row, drawing.x_labels, strict=True):
            if drawing.categories:  # fixes their order
                axes.plot(drawing.categories, [np.nan] * len(drawing.categories))
            for line in part:
                _draw_line(axes, line, axis, methods, alone=len(parts) > 1)
            axes.grid(True, alpha=0.25, linewidth=0.6)
        words = part[0].name.rpartition(", ")[2] if len(parts) > 1 else ""
        row[0].set_ylabel(_text(f"{drawing.y_label}\n{words}" if words else drawing.y_label))
        _percent(row[0], drawing.percent)
    for axes, (axis, label) in zip(grid[-1], drawing.x_labels.items(), strict=True):
        axes.set_xlabel(_text(label))
        if axis == "value":
            _mark_values(axes, drawing)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=axis in ("round", "rank")))
        axes.set_ylim(drawing.y_range)
    handles, names = grid[0][0].get_legend_handles_labels()
    if len(parts) > 1:
        names = [_text(line.name.rpartition(", ")[0]) for line in parts[0]]
    columns = min(len(names), 4 if len(drawing.x_labels) > 1 else 2)
    canvas.legend(handles, names, loc="outside lower center", ncols=max(columns, 1))


def _mark_values(axes: Any, drawing: Lines) -> None:
    """Name the swept values themselves below the axis, unless they are too many."""
    if drawing.categories:
        return
    values = sorted({float(x) for line in drawing.lines for x in line.x["value"]})
    if drawing.log:
        axes.set_xscale("log")
    if len(values) <= MOST_VALUES:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)


def _draw_line(axes: Any, line: Line, axis: str, methods: list[str], *, alone: bool) -> None:
    known = line.method in methods
    colour = _colour(methods.index(line.method)) if known else "#666666"
    x = line.x.get(axis, ())
    if len(x) != len(line.y):
        return
    dash = _turn(methods, line.method) + (0 if alone else line.dash)
    axes.plot(
        *(x, line.y),
        color=colour,
        linestyle=DASHES[dash % len(DASHES)],
        linewidth=1.5,
        marker="o" if len(x) < 4 or axis == "value" else None,
        markersize=4,
        label=_text(line.name),
    )
    if line.low is not None and line.high is not None:
        axes.fill_between(x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _turn(methods: list[str], method: str) -> int:
    """Return how often the colours have repeated before a method's own."""
    return methods.index(method) // len(COLOURS) if method in methods else 0


def _percent(axes: Any, percent: bool) -> None:
    if percent:
        from matplotlib.ticker import PercentFormatter

        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


# ---- maps ----------------------------------------------------------------------------------


def _draw_heatmap(canvas: Any, axes: Any, drawing: Heatmap, *, bar: bool = True) -> Any:
    image = axes.imshow(
        drawing.values,
        cmap=HEAT,
        vmin=drawing.low,
        vmax=drawing.high,
        aspect="auto",
        interpolation="nearest",
    )
    axes.spines[:].set_visible(False)
    _ticks(axes.xaxis, drawing.column_names, room=MOST_TICKS)
    _ticks(axes.yaxis, drawing.row_names, room=MOST_TICKS)
    if max((len(name) for name in drawing.column_names), default=0) > 2:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set(xlabel=_text(drawing.column_label), ylabel=_text(drawing.row_label))
    if drawing.annotate:
        _write_numbers(axes, image, drawing.values)
    if drawing.bars is not None:
        _draw_margin(axes, drawing.bars)
    if bar:
        canvas.colorbar(image, ax=axes, label=_text(drawing.value_label))
    return image


def _write_numbers(axes: Any, image: Any, values: np.ndarray) -> None:
    size = 8 if len(values) <= 6 else 6
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            light = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
            shown = f"{value:.2f}".removeprefix("0") if value else "0"
            axes.text(
                *(column, row, shown),
                ha="center",
                va="center",
                fontsize=size,
                color="black" if light else "white",
            )


def _draw_margin(axes: Any, groups: Sequence[int]) -> None:
    """Show the group of every row as a coloured strip beside the map."""
    from matplotlib.colors import to_rgb

    colours = [[to_rgb(_colour(g))] for g in groups]
    strip = axes.inset_axes((1.012, 0.0, 0.025, 1.0))
    strip.imshow(np.array(colours), aspect="auto", interpolation="nearest")
    strip.set(xticks=[], yticks=[])
    strip.set_title("group", fontsize=7)
    strip.spines[:].set_visible(False)


def _ticks(axis: Any, names: Sequence[str], room: int) -> None:
    step = max(1, math.ceil(len(names) / room))
    places = range(0, len(names), step)
    # Of a block of clients only the first one's number fits here.
    axis.set_ticks(list(places), [_text(names[i].partition(" and ")[0]) for i in places])
    axis.set_tick_params(length=2, labelsize=7)


def _draw_panels(canvas: Any, drawing: Panels) -> None:
    grid = canvas.subplots(1, len(drawing.panels), squeeze=False)[0]
    for axes, (name, panel) in zip(grid, drawing.panels.items(), strict=True):
        axes.set_title(_text(name))
        image = _draw_heatmap(canvas, axes, panel, bar=False)
    canvas.colorbar(image, ax=list(grid), label=_text(panel.value_label))  # they share their limits


# ---- trees, bars, violins ------------------------------------------------------------------


def _draw_dendrogram(axes: Any, drawing: Dendrogram) -> None:
    from matplotlib.collections import LineCollection

    paths, colours = [], []
    for x, y in zip(drawing.icoord, drawing.dcoord, strict=True):
        paths.append(list(zip(x, y, strict=True)))
        leaf = round((min(x) + max(x)) / 2 / 10 - 0.5)
        group = drawing.groups[min(max(leaf, 0), len(drawing.groups) - 1)]
        above_cut = drawing.cut is not None and max(y) > drawing.cut
        colours.append("#777777" if above_cut else _colour(group))
    axes.add_collection(LineCollection(paths, colors=colours, linewidths=1.2))
    top = max((max(y) for y in drawing.dcoord), default=1.0) or 1.0
    axes.set(xlim=(0, 10 * len(drawing.leaves)), ylim=(0, 1.05 * top))
    axes.set_ylabel(_text(drawing.y_label))
    if drawing.cut is not None:
        axes.axhline(drawing.cut, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"cut {drawing.cut:.3g}",
            (1.0, drawing.cut),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    # Clients are named below their branches, in the colour of their group, where they fit.
    names = [_text(name.replace(" clients from ", "x, ")) for name in drawing.leaves]
    if len(names) > MOST_LEAF_NAMES:
        axes.set(xticks=[], xlabel=f"{len(names)} branches of clients")
        return
    size = 8 if len(names) <= 40 else 6
    axes.set_xticks([10 * i + 5 for i in range(len(names))], names, rotation=90, fontsize=size)
    for label, group in zip(axes.get_xticklabels(), drawing.groups, strict=True):
        label.set_color(_colour(group))
    axes.set_xlabel("client")


def _draw_bars(axes: Any, drawing: Bars, methods: list[str]) -> None:
    places = np.arange(len(drawing.categories))
    count = 1 if drawing.stacked else len(drawing.series)
    width = 0.8 / max(count, 1)
    floor = np.zeros(len(places))
    for i, (name, values) in enumerate(drawing.series.items()):
        colour = _colour(methods.index(name) if name in methods else i)
        at = places if drawing.stacked else places + (i - (count - 1) / 2) * width
        bottom = floor if drawing.stacked else None
        hatch = "" if _turn(methods, name) == 0 else "//"  # colours have begun to repeat
        style = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axes.bar(at, values, width, bottom=bottom, label=_text(name), **style)
        floor = floor + np.nan_to_num(np.asarray(values, dtype=float))
    if drawing.log and any(v > 0 for values in drawing.series.values() for v in values):
        axes.set_yscale("log")
    names = list(drawing.categories)
    _ticks(axes.xaxis, names, room=MOST_TICKS)
    if sum(len(name) for name in names[:MOST_TICKS]) > 60:
        axes.tick_params(axis="x", labelrotation=90 if len(names) > 20 else 30)
        for label in axes.get_xticklabels():
            label.set_ha("center" if len(names) > 20 else "right")
    axes.set(xlabel=_text(drawing.x_label), ylabel=_text(drawing.y_label))
    _percent(axes, drawing.percent)
    axes.grid(True, axis="y", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(drawing.series) > 1:
        axes.figure.legend(loc="outside lower center", ncols=min(len(drawing.series), 4))


def _draw_violins(axes: Any, drawing: Violins, methods: list[str]) -> None:
    rng = np.random.default_rng(0)  # the same jitter in every picture
    for i, (name, values) in enumerate(drawing.values.items()):
        colour = _colour(methods.index(name) if name in methods else i)
        found = np.asarray(values, dtype=float)
        if np.ptp(found) > 0:
            body = axes.violinplot([found], positions=[i], showextrema=False, widths=0.8)
            for part in body["bodies"]:
                part.set(facecolor=colour, edgecolor=colour, alpha=0.35)
        shown = found if len(found) <= 300 else rng.choice(found, 300, replace=False)
        jitter = rng.uniform(-0.08, 0.08, len(shown))
        axes.scatter(i + jitter, shown, s=7, color=colour, alpha=0.6, linewidths=0)
        axes.hlines(float(np.median(found)), i - 0.25, i + 0.25, color=colour, linewidth=2)
    names = list(drawing.values)
    axes.set_xticks(range(len(names)), [_text(name) for name in names])
    axes.set_xlim(-0.9, max(len(names) - 0.1, 1.9))
    if sum(map(len, names)) > 70:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set_ha("right")
    axes.set_ylabel(_text(drawing.y_label))
    axes.grid(True, axis="y", alpha=0.25, linewidth=0.6)


# ---- words ---------------------------------------------------------------------------------


def _text(text: str) -> str:
    """Return text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")

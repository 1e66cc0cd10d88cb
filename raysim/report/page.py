"""A report as one HTML file that needs no network: tables as HTML, figures as data for plotly.

The words and numbers are in the file itself, so they can be read, searched and copied without any
script; ``assets/figures.js`` draws the figures and ``assets/page.js`` makes the controls work.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from raysim.errors import EnvironmentNotFit
from raysim.report.colours import GROUP_COLOURS, HEAT, METHOD_COLOURS
from raysim.report.figure import Figure
from raysim.report.report import Cell, Report, Table

LONG_TABLE = 100
"""A table of more rows gets a box to filter them by."""
HEAT_DIGITS = 6
"""Significant digits of a heat map's cells; more would only make the file larger."""


def write_page(report: Report) -> str:
    """Return the whole page; equal reports give equal text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as wrong:
        raise EnvironmentNotFit(
            f"an HTML report needs plotly, which is not there ({wrong}); "
            "pip install 'raysim[report]'"
        ) from wrong
    report = _briefer(report)
    drawn = [figure for figure in report.figures if figure.drawing is not None]
    missing = [figure for figure in report.figures if figure.drawing is None]
    order = [f for f in drawn if not f.run] + [f for f in drawn if f.run]
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in report.problems)
    if problems:
        heading = "<h2>What is missing</h2>"
        problems = f'<section class="problems" id="problems">{heading}<ul>{problems}</ul></section>'
    body = [
        problems,
        *(_table(table, report.methods) for table in report.tables),
        *_figure_sections(order),
        _missing(missing),
        _runs(report),
    ]
    data = {
        "methods": report.methods,
        "colours": METHOD_COLOURS,
        "groups": GROUP_COLOURS,
        "heat": HEAT.capitalize(),  # plotly.js knows the scales by capitalised names only
        "figures": [
            {"name": f.name, "title": f.title, "run": f.run, "drawing": f.drawing} for f in order
        ],
    }
    # Without any "<" the text can neither end its element nor start a comment.
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Template(_asset("template.html")).substitute(
        title=escape(report.title),
        made=escape(report.made),
        style=_asset("page.css"),
        toggles=_toggles(report.methods),
        contents=_contents(report, order),
        body="\n".join(part for part in body if part),
        data=text,
        plotly=_script(str(get_plotlyjs())),
        script=_script(_asset("figures.js") + _asset("page.js")),
    )


def _briefer(report: Report) -> Report:
    """Return the report without what every title repeats: the run, or the only setting."""
    endings = {f.title.partition(": ")[2] for f in report.figures if f.drawing and not f.run}
    ending = f": {endings.pop()}" if len(endings) == 1 else ""
    return replace(
        report,
        tables=[replace(t, title=t.title.removesuffix(ending)) for t in report.tables],
        figures=[
            replace(f, title=f.title.removesuffix(f": {f.run}" if f.run else ending))
            for f in report.figures
        ],
    )


# ---- what scripts read ---------------------------------------------------------------------


def _asset(name: str) -> str:
    return (files("raysim.report") / "assets" / name).read_text(encoding="utf-8")


def _script(source: str) -> str:
    """Return code that cannot end its ``<script>`` early, nor open a comment in it."""
    return re.sub(r"<(/script|!--)", r"<\\\1", source, flags=re.IGNORECASE)


def _plain(value: Any) -> Any:
    """Return what JSON can hold; NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, **plain}
    if isinstance(value, np.ndarray):
        return _plain(_short(value).tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def _short(values: np.ndarray) -> np.ndarray:
    """Return a matrix with few digits; vectors keep theirs, since people read them out."""
    if values.ndim < 2 or values.dtype.kind != "f":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (HEAT_DIGITS - 1 - np.floor(np.log10(np.abs(values.astype(np.float64)))))
        short = np.round(values * scale) / scale
    return np.where(np.isfinite(short), short, values)


# ---- words and tables ----------------------------------------------------------------------


def _toggles(methods: Sequence[str]) -> str:
    if not methods:
        return ""
    labels = "".join(
        f'<label><input type="checkbox" autocomplete="off" checked value="{i}">'
        f'<span class="key"></span><span>{escape(method)}</span></label>'
        for i, method in enumerate(methods)
    )
    return f'<fieldset class="methods"><legend>Methods</legend><div>{labels}</div></fieldset>'


def _contents(report: Report, figures: Sequence[Figure]) -> str:
    links = [(f"table-{_slug(t.name)}", t.title) for t in report.tables]
    links += [(f"figure-{_slug(f.name)}", f.title) for f in figures if not f.run]
    if any(figure.run for figure in figures):
        links.append(("one-run", "One run at a time"))
    links.append(("runs", "Configs and machines"))
    items = "".join(f'<li><a href="#{to}">{escape(title)}</a></li>' for to, title in links)
    return f"<ol>{items}</ol>"


def _table(table: Table, methods: Sequence[str]) -> str:
    columns = [[row[i].value for row in table.rows] for i in range(len(table.columns))]
    known = [[value for value in values if value is not None] for values in columns]
    numeric = [bool(v) and not any(isinstance(value, str) for value in v) for v in known]
    heads = "".join(
        f'<th scope="col"{_class(number=is_number)} aria-sort="none">'
        f'<button type="button">{escape(column)}</button></th>'
        for column, is_number in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(_row(row, numeric, methods) for row in table.rows)
    slug, title = _slug(table.name), escape(table.title)
    filter_box = (
        '<p class="filter"><label>Show rows with <input type="search" autocomplete="off"></label>'
        f"<output>{len(table.rows):,} rows</output></p>"
    )
    return (
        f'<section class="table" id="table-{slug}"><h2>{title}</h2>'
        f"{filter_box if len(table.rows) > LONG_TABLE else ''}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="caption">{escape(table.caption)}</p></section>'
    )


def _row(row: Sequence[Cell], numeric: Sequence[bool], methods: Sequence[str]) -> str:
    cells = "".join(
        f'<td{_class(number=is_number, noted=bool(cell.note))} data-value="{_value(cell.value)}"'
        + (f' title="{escape(cell.note)}">' if cell.note else ">")
        + (f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text))
        + "</td>"
        for cell, is_number in zip(row, numeric, strict=True)
    )
    named: set[int] = set()  # hiding one of these methods hides the row
    if methods:
        longest_first = sorted(methods, key=len, reverse=True)
        pattern = r"(?<!\w)(?:" + "|".join(re.escape(name) for name in longest_first) + r")(?!\w)"
        words = " | ".join(cell.value for cell in row if isinstance(cell.value, str))
        named = {list(methods).index(name) for name in re.findall(pattern, words)}
    return f'<tr data-methods="{" ".join(map(str, sorted(named)))}">{cells}</tr>'


def _value(value: float | str | None) -> str:
    """Return a number with all its digits, so that it can be read back from the page."""
    if value is None or isinstance(value, str):
        return escape(value or "")
    number = float(value)
    return repr(number) if math.isfinite(number) else ""


def _class(**names: bool) -> str:
    used = " ".join(name for name, is_used in names.items() if is_used)
    return f' class="{used}"' if used else ""


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# ---- figures -------------------------------------------------------------------------------


def _figure_sections(figures: Sequence[Figure]) -> list[str]:
    blocks = [_figure(i, figure) for i, figure in enumerate(figures)]
    shared = [block for block, f in zip(blocks, figures, strict=True) if not f.run]
    single = [block for block, f in zip(blocks, figures, strict=True) if f.run]
    sections = [f'<section class="figures">{"".join(shared)}</section>'] if shared else []
    if single:
        runs = list(dict.fromkeys(figure.run for figure in figures if figure.run))
        options = "".join(f'<option value="{escape(r)}">{escape(r)}</option>' for r in runs)
        sections.append(
            '<section class="figures" id="one-run"><h2>One run at a time</h2>'
            '<p class="choose"><label>Run <select id="run" autocomplete="off">'
            f"{options}</select></label></p>{''.join(single)}</section>"
        )
    return sections


def _figure(index: int, figure: Figure) -> str:
    notes = "".join(
        f'<span data-name="{escape(name)}" data-value="{escape(str(value))}">'
        f"{escape(name)} <b>{f'{value:.3g}' if isinstance(value, float) else escape(str(value))}"
        "</b></span>"
        for name, value in figure.notes.items()
    )
    anchor = _slug(f"figure {figure.name} {figure.run}")
    run = f' <span class="run">{escape(figure.run)}</span>' if figure.run else ""
    title = escape(figure.title)
    heading = "h3" if figure.run else "h2"
    return (
        f'<figure id="{anchor}" data-index="{index}" data-run="{escape(figure.run)}">'
        f"<header><{heading}>{title}{run}</{heading}>"
        f'<p class="notes">{notes}</p><div class="axes"></div></header>'
        f'<div class="plot" role="img" aria-label="{title}"></div><div class="keys"></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _missing(figures: Sequence[Figure]) -> str:
    """Return one line per figure and reason; runs that lack the same are named together."""
    if not figures:
        return ""
    lacking: dict[tuple[str, str], list[str]] = {}
    for figure in figures:
        lacking.setdefault((figure.title, figure.missing), []).append(figure.run)
    items = "".join(
        f"<li><b>{escape(title)}</b>"
        + (f' <span class="run">{escape(", ".join(runs))}</span>' if any(runs) else "")
        + f": {escape(why)}</li>"
        for (title, why), runs in lacking.items()
    )
    return (
        '<section class="missing" id="missing"><details>'
        f"<summary>Figures without data ({len(lacking)})</summary>"
        f"<ul>{items}</ul></details></section>"
    )


# ---- configs and machines ------------------------------------------------------------------


def _runs(report: Report) -> str:
    labels = list(dict.fromkeys([*report.configs, *report.environments]))
    if not labels:
        return ""
    parts = ""
    for label in labels:
        parts += f"<details><summary>{escape(label)}</summary>"
        if label in report.configs:
            parts += '<div class="config"><button type="button" class="copy">Copy</button>'
            parts += f"<pre>{escape(report.configs[label])}</pre></div>"
        if facts := report.environments.get(label):
            pairs = _flat("", facts)
            words = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
            parts += f"<dl>{''.join(words)}</dl>"
        parts += "</details>"
    return f'<section class="runs" id="runs"><h2>Configs and machines</h2>{parts}</section>'


def _flat(path: str, value: Any) -> list[tuple[str, str]]:
    """Return nested facts as pairs of a dotted name and a short text."""
    if isinstance(value, Mapping):
        return [
            pair
            for name, item in value.items()
            for pair in _flat(f"{path}.{name}" if path else str(name), item)
        ]
    if isinstance(value, str):
        return [(path, value)]
    return [(path, json.dumps(_plain(value), ensure_ascii=False))]

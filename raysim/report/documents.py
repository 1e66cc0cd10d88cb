"""A report as one HTML file, as Markdown and as LaTeX: templates in ``assets`` filled by jinja2.

The HTML file needs no network. Words and numbers are in the file itself, so they can be read,
searched and copied without any script; ``figures.js`` draws the figures with plotly and ``page.js``
makes the controls work. Markdown and LaTeX show pictures that lie beside them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import EnvironmentNotFit
from raysim.report.figure import Figure
from raysim.report.plots import COLOURS, HEAT
from raysim.report.report import Cell, Report, Table

if TYPE_CHECKING:
    import jinja2

MARKDOWN_MARK = "<!-- made by raysim report -->"
LATEX_MARK = "% made by raysim report"
LONG_TABLE = 100
"""A table of more rows gets a box to filter them by."""
HEAT_DIGITS = 6
"""Significant digits of a heat map's cells; more would only make the file larger."""
FLOATS = 6
"""Figures between two page breaks: LaTeX keeps only a few that found no place yet."""


def write_page(report: Report) -> str:
    """Return the report as an HTML page; equal reports give equal text."""
    try:
        from markupsafe import Markup  # comes with jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as wrong:
        raise EnvironmentNotFit(
            f"an HTML report needs {wrong.name}, which is not there ({wrong}); "
            "pip install 'raysim[report]'"
        ) from wrong
    report = _without_repetition(report)
    drawn = [figure for figure in report.figures if figure.drawing is not None]
    drawn.sort(key=lambda figure: bool(figure.run))
    data = {
        "methods": report.methods,
        "colours": COLOURS,
        "groups": COLOURS,
        "heat": HEAT.capitalize(),  # plotly.js knows the scales by capitalised names only
        "figures": [
            {"name": f.name, "title": f.title, "run": f.run, "drawing": f.drawing} for f in drawn
        ],
    }
    # Without any "<" the text can neither end its element nor start a comment.
    text = json.dumps(_plain(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    lacking: dict[tuple[str, str], list[str]] = {}  # runs that lack the same are named together
    for figure in report.figures:
        if figure.drawing is None:
            lacking.setdefault((figure.title, figure.missing), []).append(figure.run)
    environment = _environment(autoescape=True)
    environment.filters |= {
        "slug": _slug,
        "full": _full,
        "short": lambda value: f"{value:.3g}" if isinstance(value, float) else value,
        "flat": lambda facts: _flat("", facts),
        "numeric_columns": _numeric_columns,
        "methods_in": _methods_in,
    }
    return environment.get_template("page.html").render(
        report=report,
        **_by_place(drawn),
        lacking=lacking,
        long_table=LONG_TABLE,
        data=Markup(text),
        style=Markup(_asset("page.css")),
        plotly=Markup(_script(str(get_plotlyjs()))),
        script=Markup(_script(_asset("figures.js") + _asset("page.js"))),
    )


def write_markdown(report: Report, pictures: str) -> str:
    """Return the report as Markdown; ``pictures`` is the folder of the PNG files beside it."""
    return _write("report.md", report, pictures, _environment(), markdown_text)


def write_latex(report: Report, pictures: str) -> str:
    """Return the report as a document of its own; ``pictures`` is the folder of the PDF files."""
    marks = {"block_start_string": "<%", "block_end_string": "%>"}
    marks |= {"variable_start_string": "<<", "variable_end_string": ">>"}
    marks |= {"comment_start_string": "<#", "comment_end_string": "#>"}
    return _write("report.tex", report, pictures, _environment(**marks), latex_text)


def _write(
    name: str,
    report: Report,
    pictures: str,
    environment: jinja2.Environment,
    escape: Callable[[str], str],
) -> str:
    environment.filters |= {"text": escape, "words": _words}
    drawn = [figure for figure in report.figures if figure.drawing is not None]
    without = [figure for figure in report.figures if figure.drawing is None]
    lacking = [*report.problems, *(f"{f.title}: {f.missing}" for f in without)]
    template = environment.get_template(name)
    return template.render(
        report=report, figures=drawn, lacking=lacking, pictures=pictures, floats=FLOATS
    )


def _environment(**how: Any) -> jinja2.Environment:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **how,
    )


# ---- figures -------------------------------------------------------------------------------


def _without_repetition(report: Report) -> Report:
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


def _by_place(figures: Sequence[Figure]) -> dict[str, list[tuple[int, Figure]]]:
    """Return figures with their numbers by where on the page they stand."""
    places: dict[str, list[tuple[int, Figure]]] = {}
    for name in ("swept", "first", "shared", "single"):
        places[name] = []
    for i, figure in enumerate(figures):
        place = "single" if figure.run else "swept" if figure.tab else "shared"
        places["first" if figure.is_first else place].append((i, figure))
    return places


def _words(figure: Figure) -> str:
    notes = "; ".join(f"{name}: {value}" for name, value in figure.notes.items())
    return f"{figure.caption} {notes[:1].upper()}{notes[1:]}{'.' if notes else ''}".strip()


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


# ---- tables and facts ----------------------------------------------------------------------


def _numeric_columns(table: Table) -> list[bool]:
    """Return which columns hold numbers and no words."""
    columns = [[row[i].value for row in table.rows] for i in range(len(table.columns))]
    known = [[value for value in values if value is not None] for values in columns]
    return [bool(v) and not any(isinstance(value, str) for value in v) for v in known]


def _methods_in(row: Sequence[Cell], methods: Sequence[str]) -> str:
    """Return the numbers of the methods that a row names: hiding one hides the row."""
    if not methods:
        return ""
    longest_first = sorted(methods, key=len, reverse=True)
    pattern = r"(?<!\w)(?:" + "|".join(re.escape(name) for name in longest_first) + r")(?!\w)"
    words = " | ".join(cell.value for cell in row if isinstance(cell.value, str))
    named = {list(methods).index(name) for name in re.findall(pattern, words)}
    return " ".join(map(str, sorted(named)))


def _full(value: float | str | None) -> str:
    """Return a number with all its digits, so that it can be read back from the page."""
    if value is None or isinstance(value, str):
        return value or ""
    return repr(float(value)) if math.isfinite(value) else ""


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


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


# ---- escaping ------------------------------------------------------------------------------


def markdown_text(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split()))


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def latex_text(text: str) -> str:
    """Return text that LaTeX shows as it is."""
    plain = "".join(LATEX.get(mark, mark) for mark in " ".join(text.split()))
    return re.sub(r"(?<![\w$])-(?=\d)", "$-$", plain)

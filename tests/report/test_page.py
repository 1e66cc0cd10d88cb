"""The HTML page as text: nothing in a report can break out of its place, and no digit is lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from raysim.errors import EnvironmentNotFit
from raysim.report.documents import LONG_TABLE, write_page
from raysim.report.figure import Bars, Dendrogram, Figure, Heatmap, Line, Lines, Panels, Violins
from raysim.report.report import Cell, Report, Table

ROOT = Path(__file__).resolve().parents[2]
EVIL = '</script><script>alert("x")</script><!-- <b>&'


class Reader(HTMLParser):
    """Collects what a browser would see: elements, their text, and the cells of tables."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open = tag

    def handle_data(self, text):
        if text.strip():
            self.texts.append((self._open, text))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def words(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def report(**parts) -> Report:
    empty = {"tables": [], "figures": [], "methods": [], "configs": {}, "environments": {}}
    return Report(**{"title": "t", "made": "raysim", "problems": [], **empty, **parts})


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def drawn(drawing, **more) -> dict:
    page = write_page(report(figures=[Figure("f", "F", "c", drawing, **more)]))
    return data_of(page)["figures"][0]["drawing"]


def test_empty_report_is_a_whole_page():
    page = write_page(report())

    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert data_of(page)["figures"] == []
    assert Reader(page).all("figure") == []


def test_words_from_outside_stay_words():
    lines = Lines([Line(EVIL, {"round": [1]}, [0.5], method=EVIL)], {"round": EVIL}, EVIL)
    harmless = write_page(report(figures=[Figure("f", "F", "c", lines)]))
    page = write_page(
        report(
            title=EVIL,
            made=EVIL,
            methods=[EVIL],
            problems=[EVIL],
            tables=[Table(EVIL, EVIL, EVIL, [EVIL], [[Cell(EVIL, EVIL, note=EVIL)]])],
            figures=[
                Figure(EVIL, EVIL, EVIL, lines, run=EVIL, notes={EVIL: EVIL}),
                Figure(EVIL, EVIL, EVIL, missing=EVIL),
            ],
            configs={EVIL: EVIL},
            environments={EVIL: {EVIL: [EVIL]}},
        )
    )

    read = Reader(page)
    assert len(read.all("script")) == len(Reader(harmless).all("script")) == 4
    assert "".join(read.words("title")).strip() == EVIL
    assert read.all("td")[0]["data-value"] == EVIL
    assert read.all("td")[0]["title"] == EVIL
    assert data_of(page)["figures"][0]["drawing"]["lines"][0]["name"] == EVIL
    assert EVIL in read.words("pre")


def test_numbers_that_are_none_become_null_and_arrays_lists():
    line = Line("a", {"round": np.arange(3)}, np.array([0.1, np.nan, np.inf]), low=(0.0, 1.0, 2.0))

    found = drawn(Lines([line], {"round": "round"}, "y"))

    assert found["kind"] == "Lines"
    assert found["lines"][0]["x"]["round"] == [0, 1, 2]
    assert found["lines"][0]["y"] == [0.1, None, None]
    assert found["lines"][0]["low"] == [0.0, 1.0, 2.0]


def test_every_kind_of_drawing_reaches_the_page():
    heat = Heatmap(np.eye(2), ["a", "b"], ["c", "d"], "v")
    kinds = [
        heat,
        Dendrogram([[5, 5, 15, 15]], [[0, 1, 1, 0]], ["a", "b"], [0, 0], None),
        Bars(["a"], {"s": [1.0]}, "y"),
        Panels({"one": heat}),
        Violins({"m": [0.1, float("nan")]}, "y"),
    ]

    assert [drawn(kind)["kind"] for kind in kinds] == [type(kind).__name__ for kind in kinds]
    assert drawn(kinds[4])["values"]["m"] == [0.1, None]


def test_heat_maps_keep_six_digits_of_large_and_small_numbers():
    values = np.array([[0.123456789, -98765.4321], [1.23456789e-9, np.nan], [0.0, 1.0]])

    found = drawn(Heatmap(values.astype(np.float32), list("abc"), list("de"), "v"))["values"]

    flat = [[f"{v:.5e}" if v is not None else None for v in row] for row in found]
    assert flat[0] == ["1.23457e-01", "-9.87654e+04"]
    assert flat[1] == ["1.23457e-09", None]
    assert found[2] == [0.0, 1.0]
    assert len(json.dumps(found)) < 80


def test_cells_carry_all_digits():
    values = [1 / 3, float(np.nextafter(1.0, 2.0)), float("nan"), None, "word", 12]
    rows = [[Cell("x", value)] for value in values]

    cells = Reader(write_page(report(tables=[Table("t", "T", "", ["c"], rows)]))).all("td")

    found = [cell["data-value"] for cell in cells]
    assert [float(found[0] or ""), float(found[1] or "")] == values[:2]
    assert found[2:5] == ["", "", "word"]
    assert float(found[5] or "") == 12.0


def test_columns_of_numbers_are_marked_and_the_best_is_strong():
    rows = [[Cell("a", "a"), Cell("1 ± 2", 1.0, best=True)], [Cell("b", "b"), Cell("-", None)]]

    page = write_page(report(tables=[Table("t", "T", "", ["name", "value"], rows)]))

    read = Reader(page)
    assert [head.get("class") for head in read.all("th")] == [None, "number"]
    assert read.words("strong") == ["1 ± 2"]


def test_rows_know_their_methods_and_not_those_with_longer_names():
    methods = ["fb_nll", "fb_nll_minus", "single", "c, rank 5 (x)"]
    names = [["fb_nll_minus"], ["fb_nll", "single"], ["c, rank 5 (x)"], ["singles"], ["-"]]
    rows = [[Cell(n, n) for n in (*name, "")[:2]] for name in names]

    page = write_page(report(methods=methods, tables=[Table("t", "T", "", ["a", "b"], rows)]))

    found = [row["data-methods"] for row in Reader(page).all("tr") if "data-methods" in row]
    assert found == ["1", "0 2", "3", "", ""]


@pytest.mark.parametrize(("rows", "boxes"), [(LONG_TABLE, 0), (LONG_TABLE + 1, 1)])
def test_long_tables_can_be_filtered(rows, boxes):
    table = Table("t", "T", "", ["c"], [[Cell(str(i), i)] for i in range(rows)])

    read = Reader(write_page(report(tables=[table])))

    assert sum(box.get("type") == "search" for box in read.all("input")) == boxes


def test_missing_figures_are_one_line_per_reason():
    figures = [
        Figure("s", "Similarity", "c", missing="no similarity.npy", run=run) for run in ("a", "b")
    ]

    page = write_page(report(figures=[*figures, Figure("r", "Relevance", "c", missing="none")]))

    assert "Figures without data (2)" in page
    assert "a, b</span>: no similarity.npy" in page
    assert Reader(page).all("figure") == []


def test_titles_do_not_repeat_the_run_or_the_only_setting():
    bars = Bars(["a"], {"s": [1.0]}, "y")
    figures = [
        Figure("a", "Accuracy: digits", "", bars),
        Figure("n", "Noise: fb_nll, seed 0", "", bars, run="fb_nll, seed 0"),
    ]
    other = Figure("a-2", "Accuracy: mnist", "", bars)

    one = Reader(write_page(report(figures=figures)))
    two = Reader(write_page(report(figures=[*figures, other])))

    assert [f["aria-label"] for f in one.all("div") if "aria-label" in f] == ["Accuracy", "Noise"]
    assert [f["aria-label"] for f in two.all("div") if "aria-label" in f] == [
        *("Accuracy: digits", "Accuracy: mnist", "Noise"),
    ]


def test_without_plotly_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # as if it were not installed

    with pytest.raises(EnvironmentNotFit, match=r"raysim\[report\]"):
        write_page(report())


@pytest.mark.slow
def test_wheel_carries_the_assets(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)

    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()

    found = {Path(name).name for name in names if name.startswith("raysim/report/assets/")}
    assert found == {path.name for path in (ROOT / "raysim/report/assets").iterdir()}
    assert "page.html" in found

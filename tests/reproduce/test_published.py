"""The printed numbers are complete and are those of the sheet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raysim.studies.reproduce.papers.fb_nll import (
    CLUSTERING,
    CORRECTION,
    TABLE_II_SIMILARITY,
    TABLE_VII_SIMILARITY,
)
from raysim.studies.reproduce.papers.rcc_pfl import METHODS as RCC_PFL
from raysim.studies.reproduce.published import Published
from raysim.studies.reproduce.recipes import TARGETS

SHEETS = Path(__file__).resolve().parents[3] / "shared" / "specs"
DATASETS = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist", "CIFAR-10": "cifar10"}
DATASETS |= {"SVHN": "svhn"}
NOISES = ("class-indep", "class-dep", "uniform")


@pytest.fixture(scope="module")
def sheet() -> str:
    path = SHEETS / "errata_and_tables.md"
    if not path.is_file():
        pytest.skip("the spec sheets are not beside this checkout")
    return path.read_text(encoding="utf-8")


def lines_below(sheet: str, title: str) -> list[list[str]]:
    """Cells of the table's lines with numbers."""
    part = sheet.split(title, 1)[1].split("\n## ", 1)[0]
    rows = [line.strip().strip("|").split("|") for line in part.splitlines() if "+-" in line]
    return [[cell.strip() for cell in row] for row in rows]


def numbers(text: str) -> list[Published]:
    return [Published(float(a), float(b)) for a, b in re.findall(r"([\d.]+)\+-([\d.]+)", text)]


def by_cell(dataset: str, method: str, text: str) -> dict[str, Published]:
    pairs = zip((2, 3, 5), numbers(text), strict=True)
    return {f"{DATASETS[dataset]}/m{m}/{method}": value for m, value in pairs}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("first", "title", "methods"),
    [
        (4, "Tables IV-VI with every std", CLUSTERING),
        (9, "Tables IX-XI with every std", CORRECTION),
    ],
)
def test_fb_nll_tables_are_those_of_the_sheet(sheet, noise, first, title, methods):
    expected = {}
    for found, dataset, *columns in lines_below(sheet, title):
        if found == noise:
            for method, text in zip(methods, columns, strict=True):
                expected |= by_cell(dataset, method, text)

    assert TARGETS[f"fb-nll/table{first + NOISES.index(noise)}"].printed == expected
    assert len(expected) == 2 * 3 * len(methods)


@pytest.mark.parametrize(("number", "column"), [(2, 0), (3, 1)])
def test_rcc_pfl_tables_are_those_of_the_sheet(sheet, number, column):
    names = dict(
        zip(
            ("Optimum Clustering", "RCC-PFL", "IFCA-PFL", "Single global model"),
            RCC_PFL,
            strict=True,
        )
    )
    expected = {}
    for dataset, scheme, *columns in lines_below(sheet, "Tables II and III with every std"):
        expected |= by_cell(dataset, names[scheme], columns[column])

    assert TARGETS[f"rcc-pfl/table{number}"].printed == expected
    assert len(expected) == 36


def test_clean_label_row_is_that_of_the_sheet(sheet):
    text = (SHEETS / "fbnll.md").read_text(encoding="utf-8")
    (line,) = [x for x in text.splitlines() if x.startswith("Clean labels (ceiling)")]
    halves = line.split(";")

    expected = by_cell("CIFAR-10", "fb_nll_minus", halves[0])
    expected |= by_cell("SVHN", "fb_nll_minus", halves[1])

    assert TARGETS["fb-nll/table8"].printed == expected


TABLES = [n for n, t in TARGETS.items() if t.kind == "accuracy" and "figure" not in n]


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_of_every_table_has_a_printed_number(name):
    target = TARGETS[name]

    cells = {
        f"{cell.address} {target.value_name(value)}".strip()
        for cell in target.cells
        for value in target.compares
        if not (name == "clipfl/table3" and cell.method == "fedlsr")  # it diverged
    }
    assert target.printed.keys() == cells


def test_similarities_are_those_of_the_paper():
    inside = {pair: r for pair, r in TABLE_II_SIMILARITY.items() if r > 0.9}

    assert inside == {"1-2": 0.97, "3-4": 0.97, "3-5": 0.98, "4-5": 0.98}
    assert len(TABLE_II_SIMILARITY) == 10
    assert TABLE_VII_SIMILARITY == {"1-2": 0.62, "1-3": 0.39}


def test_every_table_and_figure_of_the_issue_is_there():
    numbers = [2, 4, 5, 6, 7, 8, 9, 10, 11]

    assert set(TARGETS) == {
        *(f"fb-nll/table{n}" for n in numbers),
        *("rcc-pfl/table2", "rcc-pfl/table3", "rcc-pfl/figure3", "fb-nll/figure5"),
        *(f"fedfixer/table{n}" for n in range(2, 6)),
        *(f"fedrn/table{n}" for n in range(2, 11)),
        *(f"clipfl/table{n}" for n in range(1, 5)),
        *(f"clipfl/figure{n}" for n in range(9, 12)),
    }

"""raysim/docs/papers.md: every name resolves, every citation stands at the function it names."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PAGE = Path(__file__).resolve().parents[1] / "raysim" / "docs" / "papers.md"
KINDS = {"code", "definition", "theory", "not built"}
NUMBERS = r"\d+(?:\s*(?:-|,|to|and)\s*\d+)*"
CITATION = re.compile(
    rf"\b(eq|line|procedure|alg|algorithm|step|stage|phase|theorem)s?\.?\s+({NUMBERS})", re.I
)
AT_THE_FUNCTION = {"eq", "line", "step"}
"""What the function itself has to cite; the rest may stand in the head of its module."""


class Row(NamedTuple):
    paper: str
    place: str
    says: str
    kind: str
    names: tuple[str, ...]


def rows() -> list[Row]:
    found, paper = [], ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            paper = line.removeprefix("## ")
        if not line.startswith("| ") or line.startswith(("| where", "| ---")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 4, f"four cells are needed: {line}"
        place, says, kind, where = cells
        found.append(Row(paper, place, says, kind, tuple(re.findall(r"`(raysim[\w.]+)`", where))))
    return found


ROWS = rows()


@cache
def resolved(name: str) -> tuple[Any, Any]:
    """Return what a dotted name stands for, and the module it is in."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as wrong:
            if not name.startswith(str(wrong.name)):
                raise
            continue
        found: Any = module
        for part in parts[count:]:
            found = getattr(found, part)
        return found, module
    raise AssertionError(f"nothing is called {name}")


def cited(text: str) -> set[tuple[str, int]]:
    """Return everything numbered that a text cites: ("eq", 3), ("line", 12), ..."""
    found = set()
    for word, numbers in CITATION.findall(re.sub(r"[\s#]+", " ", text)):
        kind = {"algorithm": "alg"}.get(word.lower(), word.lower())
        for first, last in re.findall(r"(\d+)(?:\s*(?:-|to)\s*(\d+))?", numbers):
            found |= {(kind, n) for n in range(int(first), int(last or first) + 1)}
    return found


def test_the_page_has_rows_of_every_paper():
    assert {row.paper for row in ROWS} >= {*COMPLETE}


def test_every_row_has_one_of_the_four_kinds():
    wrong = [row for row in ROWS if row.kind not in KINDS or not row.says]
    nameless = [row for row in ROWS if row.kind == "code" and not row.names]

    assert wrong == []
    assert nameless == []  # a row of kind code names its function


def test_every_name_resolves():
    wrong = []
    for row in ROWS:
        for name in row.names:
            try:
                resolved(name)
            except (ImportError, AttributeError, AssertionError) as found:
                wrong.append(f"{row.paper}: {row.place}: {name}: {found}")

    assert wrong == []


def uncited(row: Row) -> str:
    """Say what a row claims of its functions and they do not cite."""
    things = [resolved(name) for name in row.names]
    here = "\n".join(inspect.getsource(thing) for thing, _ in things)
    head = "\n".join(inspect.getdoc(module) or "" for _, module in things)
    at_function, in_file = cited(here), cited(here) | cited(head)

    wanted = cited(row.place)
    missing = {
        one for one in wanted if one not in (at_function if one[0] in AT_THE_FUNCTION else in_file)
    }
    if missing:
        return f"{row.paper}: {row.place}: {row.names} do not cite {sorted(missing)}"
    if not wanted:  # a procedure without a number: its words are in the source
        words = " ".join((here + head).lower().replace("#", " ").split())
        if row.place.lower() not in words:
            return f"{row.paper}: {row.place}: {row.names} do not mention it"
    return ""


def test_what_is_cited_stands_at_the_function():
    wrong = [uncited(row) for row in ROWS if row.kind == "code"]

    assert [*filter(None, wrong)] == []


COMPLETE = {
    "FB-NLL": {
        "": {"eq": 7},
        "Algorithm 1": {"line": 32},
        "Procedure 1": {"line": 17},
        "Procedure 2": {"line": 23},
        "Algorithm 2": {"line": 16},
        "Procedure 3": {"line": 11},
        "Procedure 4": {"line": 28},
    },
    "RCC-PFL": {
        "": {"eq": 5},
        "Algorithm 1": {"line": 10},
        "Procedure 1": {"line": 15},
        "Algorithm 2": {"line": 11},
        "Procedure 2": {"line": 19},
    },
    "FedFixer": {"": {"eq": 9, "theorem": 1}, "Algorithm 1": {"line": 30}},
    "ClipFL": {"": {"eq": 8}, "Algorithm 1": {"line": 24}},
    "FedRN": {"": {"eq": 9}, "Algorithm 1": {"line": 22}},
}


@pytest.mark.parametrize("paper", COMPLETE)
def test_nothing_numbered_is_left_out(paper):
    for part, wanted in COMPLETE[paper].items():
        places = [r.place for r in ROWS if r.paper == paper and r.place.startswith(part)]
        listed = set().union(*(cited(place) for place in places))
        missing = [
            f"{part} {kind} {n}"
            for kind, count in wanted.items()
            for n in range(1, count + 1)
            if (kind, n) not in listed
        ]
        assert missing == []

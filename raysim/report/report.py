"""What a report holds: tables, figures, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.report.figure import Figure


@dataclass(frozen=True)
class Cell:
    """One cell: the text that is shown and the number (or word) that it sorts by."""

    text: str
    value: float | str | None
    best: bool = False
    """Set in bold: the best among comparable runs."""
    note: str = ""
    """Shown on hover, such as the values of the single seeds."""


@dataclass(frozen=True)
class Table:
    """One table; every row has one cell per column."""

    name: str
    """Short and fit for a file name or an anchor: "summary", "differences"."""
    title: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Report:
    """Everything that the page and the other formats show; made once, then only read."""

    title: str
    made: str
    """What made it, such as "raysim 0.1.0"; no clock time, so equal runs give equal reports."""
    tables: Sequence[Table]
    figures: Sequence[Figure]
    methods: Sequence[str]
    """In the order of their colours and toggles; one in several settings is named once."""
    configs: Mapping[str, str]
    """By label of the run, as YAML."""
    environments: Mapping[str, Mapping[str, Any]]
    problems: Sequence[str]
    """What is missing or damaged, one sentence each."""
    ran: str = ""
    """What was run, in a line: clients, tasks, data, noise, rounds, seeds, date and version."""

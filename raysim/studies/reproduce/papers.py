"""The papers' tables and figures: what ``papers/*.yaml`` say, one file per paper.

A table is a grid of cells ``dataset/column/row``. A row is a method, or one with settings of its
own; a column's name has parts with settings of their own, like ``iid/rho1_tau0.5``. ``{word}`` in
the name of a row or a part stands for a number or a word, wherever its settings repeat it.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import yaml

from raysim.errors import ConfigError
from raysim.settings import did_you_mean
from raysim.studies.study import listed_seeds

Scale = Literal["full", "small"]
SCALES: tuple[Scale, ...] = ("full", "small")
VALUES = {
    "last": "test accuracy after the last round",
    "last10": "mean test accuracy of the last 10 rounds",
    "top5": "top-5 accuracy after the last round",
    "noisy_clients": "truly noisy clients among those taken for noisy",
}
"""What a cell's numbers may be, all in per cent."""
UNKNOWN_MINUTES, MEASURED_MINUTES = 10.0, 0.1
SETTINGS_BY = ("both", "both/{dataset}", "{scale}", "{scale}/{dataset}")
"""Where a row has its settings; later ones win."""


@dataclass(frozen=True)
class Published:
    """A number as a paper prints it, in per cent for accuracies."""

    mean: float
    sd: float | None = None
    """None where the paper gives a single value."""


@dataclass(frozen=True)
class Paper:
    """What the tables of a paper share, and what makes a bundled config that of a cell."""

    name: str
    configs: str
    """Bundled config by {dataset} and {small}."""
    seeds: int
    """Repetitions of a run in the paper."""
    tables: Mapping[str, Any]
    minutes: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of FedAvg, or plain training inside groups, on one core at 2.8 GHz without a GPU, by data
    set: full and small. Full runs of FB-NLL and those of FedFixer and FedRN on CIFAR-10 are counted
    from measured steps of their networks; ViT, CIFAR-100 and the photo sets are guesses. Features
    are computed once per machine and are not in here: EfficientNet-Lite0 takes about 20 minutes
    for CIFAR-10."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Cost of a method relative to that."""
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Overrides by a part of a column's name; ``dataset/part`` where it depends on the data set."""
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By row: ``method``, where it is not the row's name, and overrides as in ``SETTINGS_BY``."""
    deviations: Mapping[str, str] = field(default_factory=dict)
    """From the paper's setting, by scale, data set, part of a column, or row, or for all."""
    pretrained: Mapping[str, str] = field(default_factory=dict)
    """By data set the setting that asks for ImageNet ResNet-18 in the full config."""
    reuse: Mapping[str, str] = field(default_factory=dict)
    """Row -> another that it equals, bit by bit, where it finds the same groups."""
    shows: Sequence[str] = ()
    """Columns that not every paper has: ARI, labels kept, noisy clients."""
    clean: str = ""
    """The table with clean labels, which the others are shown beside."""
    pairs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Noise -> table with FB-NLL, table with FB-NLL(-)."""

    def method(self, row: str) -> str:
        """Return the registered name of the method that a row is made with."""
        return str((_known(self.rows, row) or {}).get("method", row))

    def row_settings(self, row: str, scale: Scale, dataset: str) -> list[str]:
        known = _known(self.rows, row) or {}
        keys = (key.format(scale=scale, dataset=dataset) for key in SETTINGS_BY)
        return [change for key in keys for change in known.get(key, ())]

    def column_settings(self, column: str, dataset: str) -> list[str]:
        settings: list[str] = []
        for part in column.split("/"):
            own = _known(self.columns, f"{dataset}/{part}")
            settings += _known(self.columns, part) if own is None else own
        return settings


@dataclass(frozen=True)
class TableCell:
    dataset: str
    column: str
    row: str

    @property
    def address(self) -> str:
        """How the cell is named on the command line and in the results."""
        return "/".join(part for part in (self.dataset, self.column, self.row) if part)


@dataclass(frozen=True)
class Table:
    """A table or figure."""

    name: str
    title: str
    paper: Paper
    kind: Literal["accuracy", "loss", "similarity", "costs"] = "accuracy"
    """What is compared: accuracies, test losses (no number is printed), or values that need no
    training at scale: similarities, and FedRN's costs."""
    settings: Sequence[str] = ()
    """Overrides of all its cells."""
    datasets: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()
    values: Sequence[str] = ("last",)
    """What is compared in a cell, of ``VALUES``."""
    printed: Mapping[str, Published] = field(default_factory=dict)
    """Numbers by cell, and value where there are several; of similarities and costs by value."""

    @property
    def trains(self) -> bool:
        """Whether its cells are training runs, which ``small`` reduces."""
        return self.kind in ("accuracy", "loss")

    @property
    def cells(self) -> list[TableCell]:
        """Every entry, in the order of the paper."""
        if not self.trains:
            return [TableCell("", "", self.kind)]
        grid = itertools.product(self.datasets, self.columns, self.rows)
        return [TableCell(*place) for place in grid]

    def value_name(self, value: str) -> str:
        """Return what tells a cell's values apart; empty where there is one."""
        return value if len(self.values) > 1 else ""

    def published(self, cell: TableCell) -> Mapping[str, Published]:
        """Return the printed numbers of a cell by the name of the value."""
        if not self.trains:
            return self.printed
        names = {
            name: f"{cell.address} {name}".strip() for name in map(self.value_name, self.values)
        }
        return {n: self.printed[key] for n, key in names.items() if key in self.printed}

    def minutes(self, cell: TableCell, scale: Scale) -> float:
        """Return the estimated cost of one run, for ``--list`` and the order of the runs."""
        if not self.trains:
            return MEASURED_MINUTES
        known = self.paper.minutes.get(cell.dataset)
        minutes = UNKNOWN_MINUTES if known is None else known[SCALES.index(scale)]
        return minutes * self.paper.factors.get(self.paper.method(cell.row), 1.0)


def _known(entries: Mapping[str, Any], name: str) -> Any:
    """Return the entry of a name, ``{word}``s filled in, or None."""
    for pattern, entry in entries.items():
        words = re.findall(r"{(\w+)}", pattern)
        found = re.fullmatch(re.sub(r"\\{\w+\\}", r"([\\d.]+|[a-z]+)", re.escape(pattern)), name)
        if found:
            text = json.dumps(entry)
            for word, value in zip(words, found.groups(), strict=True):
                text = text.replace(f"{{{word}}}", value)
            return json.loads(text)
    return None


# ---- reading ---------------------------------------------------------------------------------


def _paper(path: Path) -> Paper:
    raw = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    configs = f"paper/{path.stem.replace('-', '_')}_{{dataset}}{{small}}"
    return Paper(name=path.stem, configs=configs, **raw)


def read_table(paper: Paper, name: str, raw: Mapping[str, Any]) -> Table:
    """Return a table; ``numbers`` are lines ``dataset row number ...``, columns and values in turn.

    A number is ``mean`` or ``mean ±sd``; ``-`` stands for none. Measured tables have no data set.
    """
    columns = ["/".join(place) for place in itertools.product(*_words(raw, "columns"))]
    values = _words(raw, "values")[0] or ["last"]
    datasets, rows = _words(raw, "datasets")[0], _words(raw, "rows")[0]
    printed: dict[str, Published] = {}
    kind = raw.get("kind", "accuracy")
    several = len(values) > 1
    for line in raw.get("numbers", "").replace(" ±", "±").splitlines():
        count = len(columns) * len(values)
        *names, row = line.split()[:-count]
        datasets += names
        rows.append(row)
        places = itertools.product(columns, values)
        for (column, value), number in zip(places, line.split()[-count:], strict=True):
            if names:
                address = "/".join((*names, column, row)) + (f" {value}" if several else "")
            else:
                address = f"{row} {column.replace('_', ' ')}" if len(columns) > 1 else row
            if number != "-":
                mean, _, sd = number.partition("±")
                printed[address] = Published(float(mean), float(sd) if sd else None)
    unique = (list(dict.fromkeys(datasets)), columns, list(dict.fromkeys(rows)), values)
    title, settings = raw["title"], raw.get("settings", ())
    return Table(f"{paper.name}/{name}", title, paper, kind, settings, *unique, printed)


def _words(raw: Mapping[str, Any], key: str) -> list[list[str]]:
    """Return the words of ``a b / c d``, whose parts are combined."""
    return [part.split() for part in raw.get(key, "").split(" / ")]


_ORDER = ("rcc-pfl", "fb-nll", "fedfixer", "fedrn", "clipfl")
PAPERS = {name: _paper(Path(__file__).with_name("papers") / f"{name}.yaml") for name in _ORDER}
TABLES = {
    f"{paper.name}/{name}": read_table(paper, name, raw)
    for paper in PAPERS.values()
    for name, raw in paper.tables.items()
}


# ---- what a user asks for --------------------------------------------------------------------


def find_table(name: str) -> Table:
    if name not in TABLES:
        raise ConfigError(
            f"there is no table or figure {name!r}{did_you_mean(name, list(TABLES))}; "
            f"one of: {', '.join(TABLES)}"
        )
    return TABLES[name]


def select_cells(table: Table, patterns: str | None) -> list[TableCell]:
    """Return the cells that match one of the shell patterns ``a,b,...``; None: all of them."""
    cells = table.cells
    chosen: set[str] = set()
    for pattern in (part.strip() for part in ("*" if patterns is None else patterns).split(",")):
        found = {cell.address for cell in cells if fnmatchcase(cell.address, pattern)}
        if not found:
            raise ConfigError(
                f"--cells {pattern!r} matches no cell of {table.name}; its cells are: "
                f"{', '.join(cell.address for cell in cells)}"
            )
        chosen |= found
    return [cell for cell in cells if cell.address in chosen]


def parse_seeds(text: str | None, scale: Scale, default: int) -> tuple[int, ...]:
    """Return the seeds of ``N`` (the first N), ``A-B`` or ``A-B,C-D``; None: all, small one."""
    if text is None:
        return tuple(range(default if scale == "full" else 1))
    is_count = text.isdecimal() and int(text) >= 1
    seeds = listed_seeds(f"0-{int(text) - 1}" if is_count else text)
    if seeds is None or not (is_count or all("-" in part for part in text.split(","))):
        raise ConfigError(
            f"--seeds must be a number of seeds or ranges of them, got {text!r}; write for example "
            "--seeds 5 for 0 to 4, or --seeds 3-3 for seed 3 alone"
        )
    return seeds

"""What a table or figure is: a grid of cells, what is compared in them, and the printed numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysim.studies.reproduce.published import GROUPS, Published

Value = Literal["last", "last10", "top5", "noisy_clients"]
"""Accuracy after the last round, its mean over the last ten, top-5 accuracy after the last round,
share of truly noisy clients among those taken for noisy; all in per cent."""
VALUE_WORDS: dict[str, str] = {
    "last": "test accuracy after the last round",
    "last10": "mean test accuracy of the last 10 rounds",
    "top5": "top-5 accuracy after the last round",
    "noisy_clients": "truly noisy clients among those taken for noisy",
}
Overrides = tuple[str, ...]
Rows = dict[str, dict[str, Overrides]]
"""Row -> overrides by ``method`` (its name), ``both``, scale or ``scale/dataset``."""


@dataclass(frozen=True)
class Cell:
    dataset: str
    groups: int
    """Number of tasks; 0 where the columns are of another kind."""
    method: str
    """The row: a method, or a method with settings of its own."""
    column: str = ""
    """Settings of the column, ``iid/rho1_tau0.5``."""

    @property
    def address(self) -> str:
        """How the cell is named on the command line and in the results."""
        if self.column:
            return f"{self.dataset}/{self.column}/{self.method}"
        return f"{self.dataset}/m{self.groups}/{self.method}" if self.groups else self.method


@dataclass(frozen=True)
class Target:
    """A table or figure."""

    name: str
    title: str
    kind: Literal["accuracy", "loss", "similarity", "costs"]
    """What is compared: accuracies, test losses (no number is printed), or values that need no
    training at scale: similarities, and FedRN's costs."""
    noise: str = "none"
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    groups: tuple[int, ...] = GROUPS
    columns: tuple[str, ...] = ()
    """Instead of ``groups`` and ``noise``: what the columns are."""
    compares: tuple[Value, ...] = ("last",)
    printed: Mapping[str, Published] = field(default_factory=dict)
    """Numbers by cell, and value where there are several; of similarities and costs by value."""

    @property
    def paper(self) -> str:
        return self.name.partition("/")[0]

    @property
    def trains(self) -> bool:
        """Whether its cells are training runs, which ``small`` reduces."""
        return self.kind in ("accuracy", "loss")

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every entry, in the order of the paper."""
        if not self.trains:
            return (Cell(dataset="", groups=0, method=self.kind),)
        places = [(0, column) for column in self.columns] or [(m, "") for m in self.groups]
        return tuple(
            Cell(dataset, groups, method, column)
            for dataset in self.datasets
            for groups, column in places
            for method in self.methods
        )

    def value_name(self, value: Value) -> str:
        """Return what tells a cell's values apart; empty where there is one."""
        return value if len(self.compares) > 1 else ""


@dataclass(frozen=True)
class Paper:
    """The tables and figures of a paper, and what makes a bundled config that of a cell."""

    targets: tuple[Target, ...]
    seeds: int
    """Repetitions of a run in the paper."""
    columns: Mapping[str, Overrides] = field(default_factory=dict)
    """By a part of a column's path; ``dataset/part`` where it depends on the data set. Tables by
    the number of tasks have none."""
    rows: Rows = field(default_factory=dict)
    deviations: Mapping[str, str] = field(default_factory=dict)
    """From the paper's setting, by scale, data set, part of a column, or row; empty: all."""
    pretrained: Mapping[str, str] = field(default_factory=dict)
    """By data set the setting that asks for ImageNet ResNet-18 in the full config."""


def printed_grid(
    text: str, columns: Sequence[str], value: str = "", dataset: str = ""
) -> dict[str, Published]:
    """Return the numbers of lines ``[dataset] row number ...`` by cell; ``-`` stands for none.

    A number is ``mean`` or ``mean ±sd``.
    """
    grid: dict[str, Published] = {}
    for line in text.replace(" ±", "±").strip().splitlines():
        words = line.split()
        place, row, *numbers = words if not dataset else [dataset, *words]
        for column, number in zip(columns, numbers, strict=True):
            if number != "-":
                mean, _, sd = number.partition("±")
                address = f"{place}/{column}/{row} {value}".strip()
                grid[address] = Published(float(mean), float(sd) if sd else None)
    return grid

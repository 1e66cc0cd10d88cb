"""Result files: one per (cell, seed), and what a table's files say together.

``DIR/<paper>/<table>/<full|small>/<cell>/seed<k>.json``; a file is complete or absent.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysim.errors import OutputError
from raysim.storage.files import json_text, write_whole
from raysim.studies.reproduce.papers import Published, Scale, Table

FORMAT = 1
Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One printed number and what was measured for it."""

    cell: str
    what: str
    """Which of a cell's several numbers; empty for the accuracy."""
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """Per seed; in per cent for accuracies. Empty: not run."""
    published: Published | None

    @property
    def label(self) -> str:
        """What is printed beside the numbers."""
        if self.cell in ("similarity", "costs") and self.what:
            return self.what
        return f"{self.cell} {self.what}".strip()

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over the seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Measured mean minus printed mean."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published.mean

    def plain(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "cell": self.cell,
            "what": self.what,
            "seeds": list(self.seeds),
            "values": list(self.values),
            "mean": self.mean,
            "sd": self.sd,
            "n": len(self.values),
            "published": None if self.published is None else asdict(self.published),
            "difference": self.difference,
        }


def stored_scale(table: Table, scale: Scale) -> Scale:
    """Return the scale under which results are kept: similarities have nothing to reduce."""
    return scale if table.trains else "full"


def result_path(out: Path, table: Table, scale: Scale, cell: str, seed: int) -> Path:
    return out / table.name / stored_scale(table, scale) / cell / f"seed{seed}.json"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result completely or not at all: one line per entry, for readable diffs."""
    lines = [f" {json.dumps(key)}: {json_text(value)}" for key, value in result.items()]
    write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_result(path: Path) -> Result:
    """Return a result; a file that is none is an error that names it."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise OutputError(f"{path} is not a readable result ({wrong}); remove it") from wrong
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise OutputError(
            f"{path} must be a result with format {FORMAT}, written by this version of raysim; "
            "move it away or use another --out"
        )
    return result


def read_results(out: Path, table: Table, scale: Scale) -> list[Result]:
    """Return every result of a table at one scale, in the order of its cells and seeds."""
    folder = out / table.name / stored_scale(table, scale)
    order = {cell.address: i for i, cell in enumerate(table.cells)}
    stored = (read_result(path) for path in folder.rglob("seed*.json"))
    known = [result for result in stored if result["cell"] in order]
    return sorted(known, key=lambda result: (order[result["cell"]], result["seed"]))


def rows_of(table: Table, results: Sequence[Result]) -> list[Row]:
    """Return the rows of a table, those not run included."""
    rows = []
    for cell in table.cells:
        values = {r["seed"]: _values(table, r) for r in results if r["cell"] == cell.address}
        printed = table.published(cell)
        measured = dict.fromkeys(name for own in values.values() for name in own)
        expected = map(table.value_name, table.values) if table.kind == "accuracy" else printed
        for name in dict.fromkeys([*expected, *measured]) or [""]:
            numbers = {s: x for s, own in values.items() if (x := own.get(name)) is not None}
            seeds, known = tuple(numbers), tuple(numbers.values())
            rows.append(Row(cell.address, name, seeds, known, printed.get(name)))
    return rows


def _values(table: Table, result: Result) -> dict[str, float | None]:
    """Return the numbers of a result by name: compared, measured, or a task's last test loss."""
    if "values" in result:
        return dict(result["values"])
    if table.kind == "loss":
        losses = result["series"]["test_loss_by_task"][-1]
        return {f"task {i + 1}": loss for i, loss in enumerate(losses)}
    return {table.value_name(value): value_of(result, value) for value in table.values}


def value_of(result: Result, value: str) -> float | None:
    """Return a number of a result in per cent; None where the run did not record it."""
    if value == "last":
        return float(result["accuracy_percent"])
    if value == "noisy_clients":
        share = (result.get("noisy_clients") or {}).get("precision")
    else:
        share = result.get({"last10": "accuracy_last10", "top5": "top5"}[value])
    return None if share is None else 100 * share

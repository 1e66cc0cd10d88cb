"""Result files: one per (cell, seed), and what a table's files say together.

``DIR/<paper>/<table>/<full|small>/<cell>/seed<k>.json``; a file is complete or absent.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.errors import OutputError
from raysim.studies.reproduce.published import Published
from raysim.studies.reproduce.recipes import Scale
from raysim.studies.reproduce.tables import Target, Value

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
        return (
            self.what
            if self.cell in ("similarity", "costs") and self.what
            else f"{self.cell} {self.what}".strip()
        )

    @property
    def mean(self) -> float | None:
        """Mean over the seeds."""
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
        printed = self.published
        return {
            "cell": self.cell,
            "what": self.what,
            "seeds": list(self.seeds),
            "values": list(self.values),
            "mean": self.mean,
            "sd": self.sd,
            "n": len(self.values),
            "published": None if printed is None else {"mean": printed.mean, "sd": printed.sd},
            "difference": self.difference,
        }


def stored_scale(target: Target, scale: Scale) -> Scale:
    """Return the scale under which results are kept: similarities have nothing to reduce."""
    return scale if target.trains else "full"


def result_path(out: Path, target: Target, scale: Scale, cell: str, seed: int) -> Path:
    """Return the file of one run."""
    return out / target.name / stored_scale(target, scale) / cell / f"seed{seed}.json"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result completely or not at all: one line per entry, for readable diffs."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(lines) + "\n}\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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


def read_results(out: Path, target: Target, scale: Scale) -> list[Result]:
    """Return every result of a table at one scale, in the order of its cells and seeds."""
    folder = out / target.name / stored_scale(target, scale)
    order = {cell.address: i for i, cell in enumerate(target.cells)}
    found = [read_result(path) for path in folder.rglob("seed*.json")]
    known = [result for result in found if result["cell"] in order]
    return sorted(known, key=lambda result: (order[result["cell"]], result["seed"]))


def rows_of(target: Target, results: Sequence[Result]) -> list[Row]:
    """Return the rows of a table, those not run included."""
    by_cell = {
        cell.address: [r for r in results if r["cell"] == cell.address] for cell in target.cells
    }
    if target.kind == "accuracy":
        return [
            _compared(target, cell, value, found)
            for cell, found in by_cell.items()
            for value in target.compares
        ]
    rows = []
    for cell, found in by_cell.items():
        rows += _value_rows(target, cell, found)
    return rows


def _compared(target: Target, cell: str, value: Value, found: Sequence[Result]) -> Row:
    """Return the row of one of the values that a table of accuracies prints."""
    what = target.value_name(value)
    pairs = [(r["seed"], number) for r in found if (number := value_of(r, value)) is not None]
    return _row(cell, what, pairs, target.printed.get(f"{cell} {what}".strip()))


def value_of(result: Result, value: Value) -> float | None:
    """Return a number of a result in per cent; None where the run did not record it."""
    if value == "last":
        return float(result["accuracy_percent"])
    if value == "noisy_clients":
        share = (result.get("noisy_clients") or {}).get("precision")
    else:
        share = result.get({"last10": "accuracy_last10", "top5": "top5"}[value])
    return None if share is None else 100 * share


def _value_rows(target: Target, cell: str, found: Sequence[Result]) -> list[Row]:
    """Return one row per measured or printed value of a cell."""
    printed = {} if target.trains else target.printed
    values = {r["seed"]: r["values"] if "values" in r else _last_losses(r) for r in found}
    rows = []
    for key in dict.fromkeys([*printed, *(key for own in values.values() for key in own)]):
        pairs = [(seed, own[key]) for seed, own in values.items() if key in own]
        rows.append(_row(cell, key, pairs, printed.get(key)))
    return rows or [_row(cell, "", [], None)]


def _last_losses(result: Result) -> dict[str, float]:
    """Return the test loss of every task after the last round."""
    last = result["series"]["test_loss_by_task"][-1]
    return {f"task {i + 1}": loss for i, loss in enumerate(last)}


def _row(
    cell: str, what: str, pairs: Sequence[tuple[int, float]], printed: Published | None
) -> Row:
    seeds, values = tuple(s for s, _ in pairs), tuple(v for _, v in pairs)
    return Row(cell, what, seeds, values, printed)

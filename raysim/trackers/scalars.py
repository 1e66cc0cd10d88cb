"""The numbers of a run's records that can be drawn over steps.

A step is a round of training: the one-shot stages before it are step 0, and ``train`` round 5 is
step 5 in a run without others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """The numbers of one round."""

    number: int
    """Rounds of the run so far, one-shot stages included."""
    step: int
    values: dict[str, float]


class Points:
    """Turns records into points, in order; knows the step and the bytes sent so far."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, int, int, int]] = []
        """Stage and round; step, bytes up and down after it."""

    def add(self, record: Mapping[str, Any]) -> Point:
        """Return the next record's point; a round told again replaces it and those after it."""
        key = (record["stage"], record["round"])
        again = next((i for i, entry in enumerate(self._done) if entry[0] == key), None)
        if again is not None:  # the run went back to a commit
            del self._done[again:]
        _, step, up, down = self._done[-1] if self._done else (None, 0, 0, 0)
        step += "loss" in record or "accuracy" in record
        sent = record.get("bytes", {})
        up += sum(sent.get("up", {}).values())
        down += sum(sent.get("down", {}).values())
        self._done.append((key, step, up, down))
        totals = {"bytes/up_total": float(up), "bytes/down_total": float(down)}
        return Point(len(self._done), step, {**_values(record), **totals})


SECTIONS = (
    *("labels", "phases", "selection", "selection_of_wrong"),
    *("judged", "judged_of_wrong", "noisy_clients", "top5"),
)
"""Parts of a record that hold scores by name."""


def _values(record: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, Any] = {f"seconds/{record['stage']}": record.get("seconds")}
    found |= {f"accuracy/{k}": v for k, v in record.get("accuracy", {}).items()}
    found |= {"loss/train": record.get("loss"), "loss/test": record.get("test_loss")}
    for what, per_task in record.get("by_task", {}).items():
        found |= {f"{what}/task_{n}": value for n, value in enumerate(per_task)}
    for section in SECTIONS:
        found |= {f"{section}/{k}": v for k, v in (record.get(section) or {}).items()}
    if "groups" in record:
        found["groups/count"] = len(set(record["groups"]))
    found |= {f"groups/{k}": record.get(k) for k in ("ari", "nmi", "purity")}
    found["clients/late"] = len(record["late"]) if "late" in record else None
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float)}

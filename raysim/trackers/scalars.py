"""The numbers of a run's records that can be drawn over steps.

A step is a round of training: the one-shot stages before it are step 0, and ``train`` round 5 is
step 5 in a run without others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysim.runs.record import RoundRecord


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

    def add(self, record: RoundRecord) -> Point:
        """Return the next record's point; a round told again replaces it and those after it."""
        key = (record.stage, record.round)
        again = next((i for i, entry in enumerate(self._done) if entry[0] == key), None)
        if again is not None:  # the run went back to a commit
            del self._done[again:]
        _, step, up, down = self._done[-1] if self._done else (None, 0, 0, 0)
        step += record.has("loss") or record.has("accuracy")
        up, down = up + record.bytes("up"), down + record.bytes("down")
        self._done.append((key, step, up, down))
        totals = {"bytes/up_total": float(up), "bytes/down_total": float(down)}
        return Point(len(self._done), step, {**_values(record), **totals})


SECTIONS = (
    *("labels", "phases", "selection", "selection_of_wrong"),
    *("judged", "judged_of_wrong", "noisy_clients", "top5"),
)
"""Parts of a record that hold scores by name."""


def _values(record: RoundRecord) -> dict[str, float]:
    found: dict[str, Any] = {f"seconds/{record.stage}": record.seconds}
    found |= {f"accuracy/{k}": v for k, v in (record.accuracy or {}).items()}
    found |= {"loss/train": record.loss, "loss/test": record.test_loss}
    for what, per_task in (record.by_task or {}).items():
        found |= {f"{what}/task_{n}": value for n, value in enumerate(per_task)}
    for section in SECTIONS:
        found |= {f"{section}/{k}": v for k, v in (getattr(record, section) or {}).items()}
    found |= {"groups/count": record.num_groups, "groups/ari": record.ari}
    found |= {"groups/nmi": record.nmi, "groups/purity": record.purity}
    found["clients/late"] = None if record.late is None else len(record.late)
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float)}

"""What trackers share: the points they write, made from a run's events.

A point's step is a round of training: the one-shot stages before it are step 0, and ``train`` round
5 is step 5 in a run without others.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.errors import EnvironmentNotFit
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Point:
    """The numbers of one round."""

    number: int
    """Rounds of the run so far, one-shot stages included."""
    step: int
    values: dict[str, float]


class Points:
    """Turns records into points, in order; a round told again gives none: its numbers are equal."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int]] = set()
        self._step = self._up = self._down = 0

    def add(self, record: RoundRecord) -> Point | None:
        if (record.stage, record.round) in self._seen:  # the run went back to a commit
            return None
        self._seen.add((record.stage, record.round))
        self._step += record.has("loss") or record.has("accuracy")
        self._up += record.bytes("up")
        self._down += record.bytes("down")
        totals = {"bytes/up_total": float(self._up), "bytes/down_total": float(self._down)}
        return Point(len(self._seen), self._step, {**_values(record), **totals})


class Tracker(ABC):
    """Writes points somewhere; the first failure switches it off, with a warning."""

    name = ""

    def __init__(
        self, folder: RunFolder, run: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> None:
        """``run`` holds name, method, dataset and seed; ``parameters`` is the flat config."""
        self._folder, self._run, self._parameters = folder, run, parameters
        self._points, self._works = Points(), True

    @staticmethod
    @abstractmethod
    def check(folder: RunFolder) -> None:
        """Refuse, before the run starts, a run directory or a machine where it cannot work."""

    @abstractmethod
    def start(self, done: Sequence[Point]) -> None:
        """Begin after the rounds of ``done``, which are none unless the run is resumed."""

    @abstractmethod
    def log(self, point: Point) -> None: ...

    @abstractmethod
    def end(self, outcome: str) -> None:
        """``outcome`` is "done", "stopped" or "failed"."""

    def listen(self, event: Event) -> None:
        if event.kind == "start":
            points = map(self._points.add, self._folder.records(event.round))
            done = [point for point in points if point is not None]
            self.attempt(lambda: self.start(done))
        elif event.record is not None and (point := self._points.add(event.record)) is not None:
            self.attempt(lambda: self.log(point))

    def attempt(self, call: Callable[[], None]) -> None:
        """Make a call of the tracker's unless an earlier one failed."""
        if not self._works:
            return
        try:
            call()
        except Exception as wrong:  # whatever a library raises must not end the run
            self._works = False
            log.warning(
                "%s gets no more of this run (%s: %s); the records in rounds.jsonl are complete",
                *(self.name, type(wrong).__name__, first_line(wrong)),
            )


def not_installed(name: str, wrong: ImportError) -> EnvironmentNotFit:
    do = f"pip install 'raysim[{name}]', or leave it out"
    return EnvironmentNotFit(f"track: {name} is not installed here ({wrong}); {do}")


def first_line(wrong: Exception) -> str:
    return "".join(str(wrong).strip().splitlines()[:1])


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

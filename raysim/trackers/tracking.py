"""Trackers of a run: checked before it starts, fed by its events; their failures never end it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from raysim.errors import Interrupted
from raysim.runs.folder import RunFolder
from raysim.runtime.coordinator import Event, Listener
from raysim.trackers.mlflow import Mlflow, check_mlflow
from raysim.trackers.scalars import Point, Points
from raysim.trackers.tensorboard import TensorBoard, check_tensorboard

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Writes points somewhere."""

    def start(self, done: Sequence[Point]) -> None:
        """Begin after the rounds of ``done``, which are none unless the run is resumed."""

    def log(self, point: Point) -> None: ...

    def end(self, outcome: str) -> None:
        """``outcome`` is "done", "stopped" or "failed"."""


def check_trackers(names: Sequence[str], folder: RunFolder) -> None:
    """Refuse, before the run starts, trackers that cannot work."""
    if "tensorboard" in names:
        check_tensorboard(folder)
    if "mlflow" in names:
        check_mlflow()


@contextlib.contextmanager
def tracking(
    names: Sequence[str],
    folder: RunFolder,
    *,
    run: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> Iterator[list[Listener]]:
    """Yield the listeners of the trackers; ``parameters`` is the flat config."""
    make: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(folder),
        "mlflow": lambda: Mlflow(folder, run, parameters),
    }
    guarded = [Guarded(name, make[name](), folder) for name in dict.fromkeys(names)]
    outcome = "failed"
    try:
        yield [tracker.listen for tracker in guarded]
        outcome = "done"
    except (Interrupted, KeyboardInterrupt, GeneratorExit):
        outcome = "stopped"
        raise
    finally:
        for tracker in guarded:
            tracker.end(outcome)


class Guarded:
    """A tracker that is switched off, with a warning, when it fails for the first time."""

    def __init__(self, name: str, tracker: Tracker, folder: RunFolder) -> None:
        self._name, self._tracker, self._folder = name, tracker, folder
        self._points, self._logged = Points(), 0
        self._works = True

    def listen(self, event: Event) -> None:
        if event.kind == "start":
            done = [self._points.add(record) for record in self._folder.records(event.round)]
            self._logged = len(done)
            self._try(lambda: self._tracker.start(done))
        elif event.record is not None:
            point = self._points.add(event.record)
            if point.number > self._logged:  # a repeated round has the same numbers
                self._logged = point.number
                self._try(lambda: self._tracker.log(point))

    def end(self, outcome: str) -> None:
        self._try(lambda: self._tracker.end(outcome))

    def _try(self, call: Callable[[], None]) -> None:
        if not self._works:
            return
        try:
            call()
        except Exception as wrong:  # whatever a library raises must not end the run
            self._works = False
            first = str(wrong).strip().splitlines()[0] if str(wrong).strip() else ""
            log.warning(
                "%s gets no more of this run (%s: %s); the records in rounds.jsonl are complete",
                *(self._name, type(wrong).__name__, first),
            )

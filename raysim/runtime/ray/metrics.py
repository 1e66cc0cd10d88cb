"""A run in numbers that Prometheus can read from the metrics port of the driver's node.

Ray puts ``ray_`` before the names. The numbers are those of ``result.json`` as far as the run has
come; they are exported every few seconds while the driver lives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from ray.util.metrics import Gauge

from raysim.protocols import Federation
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event

log = logging.getLogger(__name__)
RUN = ("name", "method", "seed")
WHAT = {
    "raysim_rounds": ("rounds finished, of all stages", ()),
    "raysim_rounds_planned": ("rounds of all stages", ()),
    "raysim_clients": ("clients of the run", ()),
    "raysim_stage_seconds": ("seconds spent in a stage", ("stage",)),
    "raysim_bytes": ("bytes of the protocol, up to the server or down to clients", ("direction",)),
    "raysim_restarts": ("actors rebuilt", ()),
    "raysim_accuracy": ("mean accuracy of the clients on their own task, 0 to 1", ()),
}


class Round(NamedTuple):
    """What is kept of a round's record, however many clients it tells about."""

    seconds: float
    up: int
    down: int


class Totals:
    """Sums over the rounds of a run; a round that is reported again takes its old place."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, int], Round] = {}
        self.seconds: dict[str, float] = {}
        self.sent = {"up": 0, "down": 0}
        self.accuracy: float | None = None

    def __len__(self) -> int:
        return len(self._rounds)

    def add(self, record: RoundRecord) -> None:
        """Count a round once."""
        stage, key = record.stage, (record.stage, record.round)
        new = Round(record.seconds, record.bytes("up"), record.bytes("down"))
        old = self._rounds.get(key, Round(0.0, 0, 0))
        self._rounds[key] = new
        self.seconds[stage] = self.seconds.get(stage, 0.0) + new.seconds - old.seconds
        self.sent["up"] += new.up - old.up
        self.sent["down"] += new.down - old.down
        if record.accuracy is not None:
            self.accuracy = record.accuracy["mean"]


class RunMetrics:
    """A listener that keeps the gauges of one run.

    Gauges, not counters: a run that goes on, or goes back to a commit, sets them to what holds now.
    """

    def __init__(self, run: Mapping[str, Any], federation: Federation, folder: RunFolder) -> None:
        self._federation, self._folder = federation, folder
        self._totals = Totals()
        tags = {name: str(run[name]) for name in RUN}
        self._gauges = {
            name: Gauge(name, description=text, tag_keys=(*RUN, *more)).set_default_tags(tags)
            for name, (text, more) in WHAT.items()
        }

    def __call__(self, event: Event) -> None:
        """Take a round in; a gauge that cannot be set is no reason to end a run."""
        try:
            self._take(event)
            self._show()
        except Exception as wrong:
            log.warning("metrics of %s could not be set (%s)", event.kind, wrong)

    def _take(self, event: Event) -> None:
        if event.kind == "start":
            self._set("raysim_rounds_planned", event.rounds)
            self._totals = Totals()
            for record in self._folder.records(event.round) if event.round else []:
                self._totals.add(record)
        if event.kind == "round" and event.record is not None:
            self._totals.add(event.record)

    def _show(self) -> None:
        self._set("raysim_rounds", len(self._totals))
        self._set("raysim_clients", len(self._federation.clients))
        self._set("raysim_restarts", self._federation.restarts)
        if self._totals.accuracy is not None:
            self._set("raysim_accuracy", self._totals.accuracy)
        for stage, spent in self._totals.seconds.items():
            self._set("raysim_stage_seconds", spent, stage=stage)
        for direction, nbytes in self._totals.sent.items():
            self._set("raysim_bytes", nbytes, direction=direction)

    def _set(self, name: str, value: float, **tags: str) -> None:
        self._gauges[name].set(float(value), tags=tags)

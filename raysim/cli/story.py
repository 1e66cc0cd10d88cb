"""What is known of a run while it goes on, from its records and events.

``raysim run`` fills a ``Story`` as things happen, ``raysim watch`` from the files of a run
directory; ``raysim.cli.live`` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from raysim.runs.record import RoundRecord

Outcome = Literal["waiting", "setup", "running", "done", "failed", "stopped", "lost"]
BROKEN = ("failed", "stopped", "lost")
WARNED = ("WARNING", "ERROR", "CRITICAL")


class Round(NamedTuple):
    """One round's record without what grows with the number of clients."""

    stage: str
    round: int
    seconds: float
    accuracy: float | None
    std: float
    loss: float | None
    up: int
    down: int
    found: str
    late: tuple[int, ...]


def findings(record: RoundRecord) -> list[str]:
    """Return what a round found out: groups, corrected labels, noisy clients."""
    found = []
    if record.groups is not None:
        sure = f" (confidence {record.auto['confidence']:.2f})" if record.auto is not None else ""
        right = f"  ARI {record.ari:.2f}" if record.ari is not None else ""
        found.append(f"{count(record.num_groups or 0, 'group')}{sure}{right}")
    if record.noise is not None:
        before, after = record.noise
        found.append(f"noise {100 * before:.1f} % -> {100 * after:.1f} %")
    if record.noisy_clients is not None:
        found.append(count(len(record.noisy_clients["found"]), "noisy client"))
    return found


def record_line(record: RoundRecord, rounds: int | None) -> str:
    """Return the line of a record; ``rounds`` of its stage, where they are known."""
    of = "" if rounds is None else f"/{rounds}"
    facts = [f"{record.stage} {record.round}{of}"]
    if record.accuracy is not None:
        mean, std = record.accuracy["mean"], record.accuracy["std"]
        facts.append(f"acc {100 * mean:.1f} ± {100 * std:.1f}")
    if record.loss is not None:
        facts.append(f"loss {record.loss:.3f}")
    facts += findings(record)
    if record.sent is not None:
        facts.append(f"up {record.bytes('up') / 1e6:.2f} MB")
    return "  ".join([*facts, f"{record.seconds:.1f} s"])


@dataclass
class Story:
    """Collects records and events of a run; its fields are what they add up to."""

    title: str = ""
    stages: Sequence[tuple[str, int]] = ()
    """Names and rounds of the stages, in order, where the plan is known."""
    outcome: Outcome = "setup"
    message: str = ""
    """Why the run ended, or what it waits for."""
    started: datetime | None = None
    ended: datetime | None = None
    told: datetime | None = None
    """Time of the last event."""
    rounds: list[Round] = field(default_factory=list)
    actors: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Rows of environment.json; none if the run is in one process."""
    restarts: int = 0
    missing: int = 0
    """Actors lost in the round that is going on."""
    warnings: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Forget what an earlier process of the same run told."""
        self.warnings, self.restarts, self.missing = [], 0, 0

    def describe(self, config: Any) -> None:
        """Take title and stages from a config."""
        from raysim.config import choice_name
        from raysim.methods.method import stages_of

        names = (config.name, config.method_label, choice_name(config.data.dataset))
        self.title = "  ".join([*names, f"seed {config.seed}"])
        self.stages = [(stage.name, stage.rounds) for stage in stages_of(config)]

    def meet(self, actors: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of environment.json's actors."""
        self.actors = [row for row in actors if row.get("actor") != "driver"]

    def add_record(self, record: RoundRecord) -> None:
        self.missing = 0
        mean, std = (record.number("accuracy", what) for what in ("mean", "std"))
        when = (record.stage, record.round, record.seconds)
        sent, late = (record.bytes("up"), record.bytes("down")), tuple(record.late or ())
        found = "  ".join(findings(record))
        self.rounds.append(Round(*when, mean, std or 0.0, record.loss, *sent, found, late))

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take a line of events.jsonl."""
        kind = event.get("event")
        self.told = datetime.fromisoformat(event["time"]) if "time" in event else datetime.now(UTC)
        if kind == "start":
            self.started, self.ended = self.told, None
            self.outcome, self.message = "running", ""
        elif kind == "end":
            self.ended = self.told
            self.outcome = event.get("outcome", "failed")
            text = str(event.get("message", ""))
            self.message = "" if self.outcome == "done" else text.removeprefix("run ended: ")
            return
        elif kind == "lost":
            self.restarts += 1
            self.missing += 1
        elif kind == "back":
            del self.rounds[int(event.get("finished", 0)) :]
        if event.get("level") in WARNED:
            self.warnings.append(str(event.get("message", "")))

    def progress(self) -> list[tuple[str, int, list[Round]]]:
        """Return name, rounds and records of the stages: of the plan, or of those seen so far."""
        plan = self.stages or {r.stage: r.round for r in self.rounds}.items()
        return [(name, n, [r for r in self.rounds if r.stage == name]) for name, n in plan]


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"

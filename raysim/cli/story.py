"""What is known of a run while it goes on, from its records and events.

``raysim run`` fills a ``Story`` as things happen, ``raysim watch`` from the files of a run
directory; ``raysim.cli.live`` draws what ``view`` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from raysim.runs.record import RoundRecord

Outcome = Literal["waiting", "setup", "running", "done", "failed", "stopped", "lost"]
ENDED = ("done", "failed", "stopped", "lost")
WARNED = ("WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class Round:
    """One round's record without what grows with the number of clients."""

    stage: str
    round: int
    seconds: float
    accuracy: float | None = None
    std: float = 0.0
    loss: float | None = None
    up: int = 0
    down: int = 0
    found: tuple[str, ...] = ()
    """What the round found out: groups, corrected labels, noisy clients."""
    late: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunView:
    """Everything the screen shows."""

    title: str
    stages: tuple[tuple[str, int], ...] = ()
    """Names and rounds of the stages, in order."""
    rounds: tuple[Round, ...] = ()
    outcome: Outcome = "running"
    message: str = ""
    """Why the run ended, or what it waits for."""
    elapsed_s: float = 0.0
    actors: int = 0
    """Actors of the run; 0: it runs in one process."""
    nodes: int = 0
    restarts: int = 0
    missing: int = 0
    """Actors lost in the round that is going on."""
    warnings: tuple[str, ...] = ()


def round_of(record: RoundRecord) -> Round:
    """Return the small part of a record."""
    found = []
    if record.groups is not None:
        found.append(f"{record.num_groups} groups{group_facts(record)}")
    if record.noise is not None:
        found.append(noise_facts(record.noise))
    if record.noisy_clients is not None:
        found.append(f"{len(record.noisy_clients['found'])} noisy clients")
    return Round(
        stage=record.stage,
        round=record.round,
        seconds=record.seconds,
        accuracy=record.number("accuracy", "mean"),
        std=record.number("accuracy", "std") or 0.0,
        loss=record.loss,
        up=record.bytes("up"),
        down=record.bytes("down"),
        found=tuple(found),
        late=tuple(record.late or ()),
    )


def group_facts(record: RoundRecord) -> str:
    """Return how sure a found number of groups is and how right the groups are, where known."""
    sure = f" (confidence {record.auto['confidence']:.2f})" if record.auto is not None else ""
    return sure + (f"  ARI {record.ari:.2f}" if record.ari is not None else "")


def noise_facts(noise: tuple[float, float]) -> str:
    """Return the shares of wrong labels before and after correction as text."""
    return f"noise {100 * noise[0]:.1f} % -> {100 * noise[1]:.1f} %"


class Story:
    """Collects records and events; ``view`` is what they add up to."""

    def __init__(self, title: str, *, stages: Sequence[tuple[str, int]] = ()) -> None:
        self.title, self.stages = title, tuple(stages)
        self.outcome: Outcome = "setup"
        self.message = ""
        self.started: datetime | None = None
        self.ended: datetime | None = None
        self.told: datetime | None = None
        """Time of the last event."""
        self.begin()
        self._rounds: list[Round] = []
        self._actors: list[Mapping[str, Any]] = []

    def begin(self) -> None:
        """Forget what an earlier process of the same run told."""
        self._warnings: list[str] = []
        self._restarts = self._missing = 0

    def meet(self, actors: Sequence[Mapping[str, Any]]) -> None:
        """Take the rows of environment.json's actors."""
        self._actors = [row for row in actors if row.get("actor") != "driver"]

    def forget_rounds(self, keep: int = 0) -> None:
        """Go back to the first ``keep`` rounds."""
        del self._rounds[keep:]

    def add_record(self, record: RoundRecord) -> None:
        self._rounds.append(round_of(record))
        self._missing = 0

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Take a line of events.jsonl."""
        kind, self.told = event.get("event"), _time(event)
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
            self._restarts += 1
            self._missing += 1
        elif kind == "back":
            self.forget_rounds(int(event.get("finished", 0)))
        if event.get("level") in WARNED:
            self._warnings.append(str(event.get("message", "")))

    @property
    def num_rounds(self) -> int:
        return len(self._rounds)

    def view(self, now: datetime | None = None) -> RunView:
        """Return what is to be shown at ``now``."""
        until = self.ended or now or datetime.now(UTC)
        elapsed_s = (until - self.started).total_seconds() if self.started else 0.0
        return RunView(
            title=self.title,
            # Where the plan is not known: the stages of the rounds seen so far.
            stages=self.stages or tuple({r.stage: r.round for r in self._rounds}.items()),
            rounds=tuple(self._rounds),
            outcome=self.outcome,
            message=self.message,
            elapsed_s=max(elapsed_s, 0.0),
            actors=len(self._actors),
            nodes=len({row.get("node") for row in self._actors}),
            restarts=self._restarts,
            missing=min(self._missing, len(self._actors)),
            warnings=tuple(self._warnings),
        )


def stages_of(config: Any) -> tuple[tuple[str, int], ...]:
    """Return names and rounds of a config's stages."""
    from raysim.methods.method import stages_of as method_stages

    return tuple((stage.name, stage.rounds) for stage in method_stages(config))


def title_of(config: Any) -> str:
    """Return name, method, dataset and seed of a config in one line."""
    from raysim.config import choice_name

    names = (config.name, config.method_label, choice_name(config.data.dataset))
    return "  ".join([*names, f"seed {config.seed}"])


def _time(event: Mapping[str, Any]) -> datetime:
    try:
        return datetime.fromisoformat(str(event["time"]))
    except (KeyError, ValueError):
        return datetime.now(UTC)

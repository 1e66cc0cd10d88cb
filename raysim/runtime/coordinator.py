"""The loop over stages and rounds: step, record, commit, tell listeners.

Knows no method and no data.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from raysim.errors import CheckpointError, Interrupted, ModelsLost, WorkerLost
from raysim.protocols import Context, Federation, Stage, State, Step, Where
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.storage.checkpoint import read_manifest, write_manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something a listener may show: ``start``, ``round`` or ``commit``."""

    kind: str
    stage: str = ""
    round: int = 0
    rounds: int = 0
    record: RoundRecord | None = None


Listener = Callable[[Event], None]
MakeContext = Callable[[Where, dict[str, Any]], Context]
"""(where the run is, the record to fill) -> the context of that round."""


class Coordinator:
    """Drives one run from its last commit to its end."""

    def __init__(
        self,
        *,
        federation: Federation,
        stages: Sequence[Stage],
        folder: RunFolder,
        context: MakeContext,
        every: int,
        max_returns: int = 3,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """``max_returns``: how often one commit may be gone back to when models are lost."""
        self._max_returns, self._returns = max_returns, 0
        self._federation, self._folder = federation, folder
        self._context, self._every, self._listeners = context, every, listeners
        self._schedule = [
            (stage.step, Where(stage.name, r, stage.rounds))
            for stage in stages
            for r in range(stage.rounds)
        ]
        self._stop_asked = self._stopping = self._listening = False
        self._committed, self._between_rounds = 0, True
        self.state, self.done = State(), 0
        """The state after ``done`` rounds of the run."""
        self.stored: Mapping[str, str] = {}
        """Digests of the models of the last commit."""

    @property
    def total(self) -> int:
        """Rounds of all stages."""
        return len(self._schedule)

    @property
    def is_finished(self) -> bool:
        """Whether no round is left."""
        return self.done == self.total

    def run(self, *, resume: bool) -> State:
        """Begin, run what is left of the stages and return the final state."""
        self.begin(resume=resume)
        return self.finish()

    def begin(self, *, resume: bool) -> None:
        """Take up the last commit, or nothing."""
        self.state, self.done = self._restore() if resume else (State(), 0)
        self._tell(Event("start", rounds=self.total, round=self.done))

    def finish(self) -> State:
        """Run the rounds that are left and return the final state."""
        with self._interruptible():
            while not self.is_finished:
                self.next_round()
        return self.state

    def next_round(self) -> Event:
        """Run one round, from the last commit on where models were lost; return what it did."""
        with self._interruptible():
            while True:
                step, where = self._schedule[self.done]
                self._between_rounds = False
                try:
                    event = self._committed_round(step, where)
                    break
                except ModelsLost as lost:
                    self.state, self.done = self._go_back(lost, where)
            self._between_rounds = True
            if self._stopping and not self.is_finished:
                raise Interrupted(f"stopped after {where}; checkpoint written, go on with --resume")
        return event

    def leave(self) -> None:
        """Commit the rounds that are done; not after one that failed half way."""
        if not self._between_rounds or self._committed == self.done:
            return
        with self._interruptible():
            try:
                self.state = self._commit(self.state, self.done)
            except ModelsLost as lost:
                log.warning("%s; the rounds after the last commit have to be run again", lost)

    def _committed_round(self, step: Step, where: Where) -> Event:
        """Run a round, and commit after it where that is due."""
        state, event = self._round(step, where, self.state)
        self._stopping = self._stop_asked  # read once: a signal may come at any line
        last_of_stage = where.round + 1 == where.rounds
        due = last_of_stage or self._stopping or (where.round + 1) % self._every == 0
        if due or self._federation.unsettled:
            state = self._commit(state, self.done + 1)
        self.state, self.done = state, self.done + 1
        return event

    def _go_back(self, lost: ModelsLost, where: Where) -> tuple[State, int]:
        """Return to the last commit after models died with their node; to nothing without one."""
        self._returns += 1
        if self._returns > self._max_returns:
            raise WorkerLost(
                f"{lost}; that happened {self._returns} times since the last commit "
                f"(runtime.max_restarts is {self._max_returns})"
            ) from lost
        try:
            state, done = self._restore()
        except ModelsLost as again:
            return self._go_back(again, where)
        log.warning(
            "models were lost with their node in %s; going on from the last commit, "
            "after round %d of the run",
            *(where, done),
            extra={"facts": {"event": "back", "finished": done}},
        )
        return state, done

    def _round(self, step: Step, where: Where, state: State) -> tuple[State, Event]:
        started = time.perf_counter()
        self._federation.where = where
        entry: dict[str, Any] = {"stage": where.stage, "round": where.round + 1}
        self._federation.late.clear()
        state = step(self._context(where, entry), state)
        if self._federation.late:
            entry["late"] = sorted(self._federation.late)
        entry["seconds"] = round(time.perf_counter() - started, 4)
        record = RoundRecord.from_json(entry)
        self._folder.append(record)
        event = Event("round", where.stage, where.round + 1, where.rounds, record)
        self._tell(event)
        return state, event

    def _commit(self, state: State, finished: int) -> State:
        self._folder.check_config()
        stored = self._federation.commit(self._folder.checkpoint, state.models)
        groups = {str(k): g for k, g in state.groups.items()}
        small = {"groups": groups, "values": dict(state.values), "finished": finished}
        write_manifest(self._folder.checkpoint, {**stored, **small})
        self._folder.seal()
        self._returns, self._committed, self.stored = 0, finished, stored["models"]
        self._tell(Event("commit", round=finished))
        if finished == self.total:
            return state
        moved = self._federation.settle(self._folder.checkpoint, self.stored, state.models)
        return replace(state, models={**state.models, **moved})

    def _restore(self) -> tuple[State, int]:
        manifest = read_manifest(self._folder.checkpoint)
        if manifest is None:
            self._folder.keep_records(0)
            self._federation.restore(self._folder.checkpoint, {"memory": {}, "models": {}})
            self._committed = 0
            return State(), 0
        finished = int(manifest["finished"])
        if len(self._folder.records()) < finished:
            raise CheckpointError(
                f"rounds.jsonl in {self._folder.path} has fewer rounds than its checkpoint "
                f"({finished}); start anew with --force"
            )
        self._folder.keep_records(finished)
        self._committed, self.stored = finished, manifest["models"]
        models = self._federation.restore(self._folder.checkpoint, manifest)
        groups = {int(k): int(g) for k, g in manifest["groups"].items()}
        return State(groups=groups, models=models, values=manifest["values"]), finished

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """First Ctrl-C or SIGTERM: finish the round and commit.

        Second: stop now; the last commit stays. Between rounds that a caller takes one by one,
        signals are the caller's.
        """
        if self._listening or threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: object) -> None:
            if self._stop_asked:
                raise Interrupted("stopped at once; go on from the last checkpoint with --resume")
            self._stop_asked = True
            log.warning("stopping after this round; press Ctrl-C again to stop at once")

        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
        self._listening = True
        try:
            yield
        finally:
            self._listening = False
            for number, handler in before.items():
                signal.signal(number, handler)

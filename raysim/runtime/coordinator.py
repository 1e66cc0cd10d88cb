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
from dataclasses import dataclass
from typing import Any

from raysim.errors import CheckpointError, Interrupted
from raysim.protocols import Context, Federation, Stage, State
from raysim.runtime.checkpoint import read_manifest, write_manifest
from raysim.runtime.run_folder import RunFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something a listener may show: ``start``, ``round`` or ``commit``."""

    kind: str
    stage: str = ""
    round: int = 0
    rounds: int = 0
    record: Mapping[str, Any] | None = None


Listener = Callable[[Event], None]
MakeContext = Callable[[Stage, int, dict[str, Any]], Context]
"""(stage, round, the record to fill) -> the context of that round."""


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
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._federation, self._stages, self._folder = federation, stages, folder
        self._context, self._every, self._listeners = context, every, listeners
        self._stop_asked = False

    def run(self, *, resume: bool) -> State:
        """Run what is left of the stages and return the final state."""
        state, finished = self._restore() if resume else (State(), 0)
        schedule = [(stage, r) for stage in self._stages for r in range(stage.rounds)]
        self._tell(Event("start", rounds=len(schedule), round=finished))
        with self._interruptible():
            for done in range(finished, len(schedule)):
                stage, round_id = schedule[done]
                state = self._round(stage, round_id, state)
                last_of_stage = round_id + 1 == stage.rounds
                stopping = self._stop_asked  # read once: a signal may come at any line
                if last_of_stage or stopping or (round_id + 1) % self._every == 0:
                    self._commit(state, done + 1)
                if stopping and done + 1 < len(schedule):
                    raise Interrupted(
                        f"stopped after {stage.name} round {round_id + 1}/{stage.rounds}; "
                        f"checkpoint written, go on with --resume"
                    )
        return state

    def _round(self, stage: Stage, round_id: int, state: State) -> State:
        started = time.perf_counter()
        self._federation.where = f"{stage.name} round {round_id + 1}/{stage.rounds}"
        record: dict[str, Any] = {"stage": stage.name, "round": round_id + 1}
        state = stage.step(self._context(stage, round_id, record), state)
        record["seconds"] = round(time.perf_counter() - started, 4)
        self._folder.append(record)
        self._tell(Event("round", stage.name, round_id + 1, stage.rounds, record))
        return state

    def _commit(self, state: State, finished: int) -> None:
        stored = self._federation.commit(self._folder.checkpoint, state.models)
        groups = {str(k): g for k, g in state.groups.items()}
        small = {"groups": groups, "values": dict(state.values), "finished": finished}
        write_manifest(self._folder.checkpoint, {**stored, **small})
        self._tell(Event("commit", round=finished))

    def _restore(self) -> tuple[State, int]:
        manifest = read_manifest(self._folder.checkpoint)
        if manifest is None:
            self._folder.keep_records(0)
            return State(), 0
        finished = int(manifest["finished"])
        if len(self._folder.records()) < finished:
            raise CheckpointError(
                f"rounds.jsonl in {self._folder.path} has fewer rounds than its checkpoint "
                f"({finished}); start anew with --force"
            )
        self._folder.keep_records(finished)
        models = self._federation.restore(self._folder.checkpoint, manifest)
        groups = {int(k): int(g) for k, g in manifest["groups"].items()}
        return State(groups=groups, models=models, values=manifest["values"]), finished

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """First Ctrl-C or SIGTERM: finish the round and commit.

        Second: stop now; the last commit stays.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: object) -> None:
            if self._stop_asked:
                raise Interrupted("stopped at once; go on from the last checkpoint with --resume")
            self._stop_asked = True
            log.warning("stopping after this round; press Ctrl-C again to stop at once")

        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

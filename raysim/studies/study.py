"""Many runs: a list of cells, a back end that runs those without a result, and what came of each.

``compare``, ``sweep`` and ``reproduce`` only make cells and choose what to show. A back end is
anything with the members of ``Backend``; ``default_backend`` picks it. It gets plain values, calls
``perform`` with them somewhere else, and hands on the events that this sends.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from raysim.config import (
    FREE_TO_CHANGE,
    RunConfig,
    changed_keys,
    dump_config,
    load_config,
    load_saved,
)
from raysim.errors import ConfigError, DataError, Interrupted, OutputError, RaysimError
from raysim.runs.folder import RunFolder
from raysim.settings import RuntimeSettings

MOST_SEEDS = 1000
"""Of one command."""
LONGEST_NAME = 80
"""Bytes of a file name that is made of a text."""
STATUS_EVERY_S = 60.0
Say = Callable[[str], None]
Tell = Callable[..., None]
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    label: Mapping[str, str]
    """What tells it from the others: method, table cell, swept values, seed."""
    config: RunConfig | None
    """None: a measurement that is no training run."""
    work: str = "raysim.studies.study:train"
    """``module:function`` that carries it out: (what it is told, tell) -> last facts."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What the function is told besides config, resume and force; plain values."""
    goal: Path | None = None
    """The file that it makes; None: the result of its run directory."""
    after: Path | None = None
    """The goal of another cell; this one starts once nobody is making it any more."""
    minutes: float = 0.0
    """Estimated cost."""

    @property
    def title(self) -> str:
        """How it is called in messages."""
        words = {"method": "{}", "cell": "{}", "seed": "seed {}"}
        return " ".join(words.get(k, f"{k}={{}}").format(v) for k, v in self.label.items())

    @property
    def who(self) -> dict[str, str]:
        """What runs of other seeds have in common with it."""
        return {key: value for key, value in self.label.items() if key != "seed"}

    @property
    def run_config(self) -> RunConfig:
        assert self.config is not None
        return self.config

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(self.run_config.run_dir())

    @property
    def log(self) -> str:
        """Name of the file that its traceback goes to if it fails."""
        return f"{file_name(self.title.replace(' seed ', '-seed').replace(' ', '-'))}.txt"

    @property
    def is_finished(self) -> bool:
        return self.folder.is_finished if self.goal is None else self.goal.exists()

    def told(self, *, local: bool, force: bool) -> dict[str, Any]:
        """Return what ``perform`` is told; ``local``: all clients of the run in its process."""
        told: dict[str, Any] = {"work": self.work, "force": force, **self.more}
        if self.config is not None:
            told["config"] = dump_config(self.config)
            told["resume"] = self.folder.is_started and not force
            if local:
                told["config"]["runtime"] |= {"kind": "local", "address": None}
        return told


@dataclass(frozen=True)
class Outcome:
    """A cell that was run."""

    cell: Cell
    error: str | None = None
    """Why there is no result."""


class Backend(Protocol):
    """Where cells are run. Nothing here is a type of raysim: values are plain, keys are text."""

    local: bool
    """Every run keeps its clients in one process; False: the runtime of its config."""
    how: str
    """Where a cell runs where all its clients are in one process, for people."""

    @property
    def at_once(self) -> int:
        """How many cells may run at the same time."""

    def start(self, key: str, told: Mapping[str, Any]) -> None:
        """Begin ``perform(told, tell)`` somewhere else."""

    def events(self, timeout_s: float) -> Iterator[tuple[str, Event]]:
        """Yield (key, event) of what was told, waiting at most ``timeout_s``.

        The last event of a key is ``{"event": "end", "code": ..., "said": ...}`` with what
        ``perform`` returned (below 0: ended by that signal) and what else it printed.
        """

    def stop(self) -> None:
        """Ask every running cell to finish its round and commit."""

    def close(self) -> None:
        """End what still runs, at once, and free everything."""


def default_backend(config: RunConfig | None, jobs: int | None) -> Backend:
    """Return the back end for runs like ``config``.

    Tasks of the cluster that its runtime or ``RAY_ADDRESS`` names, else processes of this machine.
    """
    from raysim.studies.processes import Processes, default_jobs

    runtime = config.runtime if config is not None else RuntimeSettings()
    if runtime.kind != "local" and (runtime.address or os.environ.get("RAY_ADDRESS")):
        from raysim.runtime.ray.connection import find_cluster
        from raysim.runtime.ray.study_tasks import RayTasks

        if find_cluster(runtime.address)[1] is not None:
            output = config.run_dir() if config is not None else Path.cwd()
            return RayTasks(perform, runtime, jobs, output=str(output))
    return Processes(jobs or (1 if runtime.per_actor.gpus else default_jobs()))


def file_name(text: str) -> str:
    """Return the text with nothing in it that a file name or a template could stumble over.

    Where that changes it or it is long, a part of its hash tells it from similar texts.
    """
    plain = re.sub(r"[^\w.,=+-]+", "-", text).encode()[:LONGEST_NAME].decode(errors="ignore")
    return plain if plain == text else f"{plain}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# ---- before anything starts ------------------------------------------------------------------


def listed_seeds(text: str) -> tuple[int, ...] | None:
    """Return the numbers of ``0-4,7``, each once; None if ``text`` is no such list."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        end = last if dash else first
        if not (first.isdecimal() and end.isdecimal() and int(first) <= int(end)):
            return None
        if int(end) - int(first) >= MOST_SEEDS:
            raise ConfigError(
                f"--seeds must name at most {MOST_SEEDS} seeds, got {text!r}; give fewer"
            )
        seeds += range(int(first), int(end) + 1)
    return tuple(dict.fromkeys(seeds))


def unfinished(cells: Sequence[Cell], *, resume: bool, force: bool) -> list[Cell]:
    """Return the cells that are still to do; refuse directories that hold something else."""
    started = [cell for cell in cells if cell.folder.is_started]
    if started and not (resume or force):
        raise OutputError(
            f"{len(started)} of {len(cells)} run directories hold runs already, the first is "
            f"{started[0].folder.path}; use --resume to keep what is finished and go on with the "
            "rest, or --force to run all again"
        )
    for cell in cells:
        goes_on = resume and cell in started
        cell.folder.check(resume=goes_on, force=force)
        if goes_on:
            _check_same(cell)
    return [cell for cell in cells if force or not cell.is_finished]


def _check_same(cell: Cell) -> None:
    saved = load_saved(cell.folder.saved_config(), f"{cell.folder.path}/config.yaml")
    # What was imported besides does not touch a run that is finished: a method may join later.
    free = (*FREE_TO_CHANGE, "imports") if cell.is_finished else FREE_TO_CHANGE
    changed = changed_keys(cell.run_config, saved, ignore=free)
    if changed:
        keys = ", ".join(f"{key} (now {new!r}, was {old!r})" for key, new, old in changed)
        raise ConfigError(
            f"--resume: {keys} differ from the config of {cell.folder.path}; use the same "
            "settings, another name, or --force to run all again"
        )


def check_fit(cells: Sequence[Cell]) -> None:
    """Load the data once per method and swept value; refuse a method that does not fit it."""
    from raysim.experiment import Experiment

    first: dict[tuple[str, ...], Cell] = {}
    for cell in cells:
        first.setdefault(tuple(cell.who.values()), cell)
    for cell in first.values():
        try:
            Experiment(cell.run_config).prepare()
        except (ConfigError, DataError) as wrong:
            kind = DataError if isinstance(wrong, DataError) else ConfigError
            raise kind(f"--methods {cell.label['method']}: {wrong}") from wrong


# ---- running ---------------------------------------------------------------------------------


def run_study(
    cells: Sequence[Cell],
    *,
    backend: Backend,
    say: Say,
    errors: Path,
    force: bool = False,
    again: str = "the same command",
) -> list[Outcome]:
    """Run the cells that have no result (``force``: all) and return what came of these.

    One that fails takes no other with it; its traceback goes to the folder ``errors``, or beside
    its goal. Ctrl-C and SIGTERM raise ``Interrupted``; ``again`` is the command that goes on then.
    """
    todo = [cell for cell in cells if force or not cell.is_finished]
    study = _Study(todo, backend, say, errors, force=force)
    with _terminate_is_interrupt():
        try:
            while study.waiting or study.live:
                study.start()
                study.listen()
        except KeyboardInterrupt:
            study.stop()
            done = sum(outcome.error is None for outcome in study.outcomes)
            raise Interrupted(
                f"stopped with {done} of {study.total} runs finished; {again} goes on from the "
                "last round of the others"
            ) from None
        finally:
            backend.close()
    return study.outcomes


@dataclass
class _Live:
    cell: Cell
    started: float = field(default_factory=time.monotonic)
    last: dict[str, Any] = field(default_factory=dict)


class _Study:
    def __init__(
        self, cells: list[Cell], backend: Backend, say: Say, errors: Path, *, force: bool
    ) -> None:
        self.waiting, self.total = cells, len(cells)
        self.live: dict[str, _Live] = {}
        self.outcomes: list[Outcome] = []
        self._backend, self._say, self._errors, self._force = backend, say, errors, force
        self._status_s, self._stopping = time.monotonic(), False

    def start(self) -> None:
        """Start as many cells as there are free places, none before the one that it waits for."""
        while len(self.live) < self._backend.at_once:
            coming = {c.goal for c in (*self.waiting, *(x.cell for x in self.live.values()))}
            cell = next((c for c in self.waiting if c.after is None or c.after not in coming), None)
            if cell is None:
                return
            self.waiting.remove(cell)
            if self._force and cell.goal is not None:  # half-made, it must not count as finished
                cell.goal.unlink(missing_ok=True)
            self._say(f"start  {cell.title}")
            self.live[cell.title] = _Live(cell)
            told = cell.told(local=self._backend.local, force=self._force)
            self._backend.start(cell.title, told)

    def listen(self, timeout_s: float = 1.0) -> None:
        """Take what the cells say, for at most ``timeout_s``."""
        for key, event in self._backend.events(timeout_s):
            if event["event"] == "end":
                self._ended(self.live.pop(key), event)
            else:
                self.live[key].last.update(event)
        if time.monotonic() - self._status_s > STATUS_EVERY_S:
            self._status_s = time.monotonic()
            for title, live in self.live.items():
                self._say(f"       {title}: {_progress(live.last)}")

    def _ended(self, live: _Live, end: Event) -> None:
        cell, last = live.cell, live.last
        if end["code"] == 0:
            self.outcomes.append(Outcome(cell))
            count = sum(outcome.error is None for outcome in self.outcomes)
            values = last.get("values")
            score = _percent(last["accuracy"]) if values is None else f"{values} values"
            took = f"in {time.monotonic() - live.started:.0f} s{last.get('remark', '')}"
            self._say(f"done   {cell.title}: {score} {took}  {count}/{self.total}")
        elif not self._stopping:
            goal = cell.goal
            log = self._errors / cell.log if goal is None else goal.with_suffix(".error.txt")
            error = _failure(log, last, end)
            self.outcomes.append(Outcome(cell, error))
            self._say(f"failed {cell.title}: {error}")

    def stop(self) -> None:
        """Let every cell finish its round and commit; a second Ctrl-C does not wait."""
        self._stopping = True
        self._say("stopping after the current rounds; press Ctrl-C again to stop at once")
        self._backend.stop()
        with suppress(KeyboardInterrupt):
            while self.live:
                self.listen()


def _failure(log: Path, last: Event, end: Event) -> str:
    """Return why a cell failed; its traceback goes to the log."""
    code = end["code"]
    by_signal = f"ended by signal {-code}" + (" (out of memory?)" if code == -9 else "")
    error = str(last.get("message") or (by_signal if code < 0 else f"ended with code {code}"))
    trace = last.get("trace") or end["said"]
    if trace:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"{trace}\n", encoding="utf-8")
        error += f" (traceback in {log})"
    return error


def _progress(last: Event) -> str:
    if "round" not in last:
        return "preparing"
    score = "" if last["accuracy"] is None else f"  {_percent(last['accuracy'])}"
    return f"{last['stage']} {last['round']}/{last['rounds']}{score}"


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.2f} %"


@contextmanager
def _terminate_is_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, where signals can be handled."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- where a cell is run ---------------------------------------------------------------------


def perform(told: Mapping[str, Any], tell: Tell) -> int:
    """Do the work of a cell and return 0, 130 after an interruption, or 1.

    ``tell(event=..., ...)`` gets its rounds, and at the end its last facts or what went wrong.
    """
    module, _, name = told["work"].partition(":")
    try:
        tell(event="done", **getattr(importlib.import_module(module), name)(told, tell))
    except (Interrupted, KeyboardInterrupt):
        return 130
    except RaysimError as wrong:
        tell(event="error", message=str(wrong), trace=getattr(wrong, "trace", ""))
        return 1
    except Exception as wrong:  # a defect: the other runs must go on and the report must say it
        message = f"{type(wrong).__name__}: {wrong}"
        tell(event="error", message=message, trace=traceback.format_exc())
        return 1
    return 0


def train(told: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Run or go on with the experiment of ``told["config"]``; return its accuracy."""
    from raysim.experiment import Experiment

    experiment = Experiment(load_config(told["config"]))
    listeners = [tell_rounds(tell)]
    result = experiment.run(resume=told["resume"], force=told["force"], listeners=listeners)
    return {"accuracy": result.accuracy}


def tell_rounds(tell: Tell) -> Callable[[Any], None]:
    """Return the listener of a run that sends an event after every round."""

    def listen(event: Any) -> None:
        if event.kind == "round":
            accuracy = (event.record.accuracy or {}).get("mean") if event.record else None
            where = {"stage": event.stage, "round": event.round, "rounds": event.rounds}
            tell(event="round", **where, accuracy=accuracy)

    return listen

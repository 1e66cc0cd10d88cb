"""Jobs in processes of their own, so that one that fails or is killed takes no other with it.

``execute`` starts them; ``work`` runs in each: it reads a job from standard input and sends events
on standard output.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from raysim.errors import ConfigError, Interrupted, RaysimError

RUN_BYTES = 1_500_000_000
"""Memory that one run is given when the number of jobs is chosen; the largest measured is less."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
MOST_SEEDS = 1000
"""Of one command."""
STATUS_EVERY_S = 60.0
PARENT_GONE = 4
Say = Callable[[str], None]
Tell = Callable[..., None]


@dataclass(frozen=True)
class Job:
    """What one process is to do."""

    title: str
    """How it is called in messages."""
    told: Mapping[str, Any]
    """What the process is told, as JSON."""
    log: Path
    """Where its traceback goes if it fails."""
    goal: str = ""
    """What it makes; other jobs may wait for it."""
    after: str | None = None
    """The goal of another job; this one starts once nobody is making it any more."""


Score = Callable[[Job, Mapping[str, Any]], tuple[str, str]]
"""(job, its events) -> what it achieved, and a remark that follows the seconds."""


@dataclass
class _Live:
    job: Job
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    started: float = field(default_factory=time.monotonic)
    unread: bytes = b""
    last: dict[str, Any] = field(default_factory=dict)


def default_jobs() -> int:
    """Return one job per CPU that this process may use, fewer where memory is short."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return cpus
    return max(1, min(cpus, free // RUN_BYTES))


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


def execute(
    jobs: Sequence[Job],
    *,
    worker: str,
    at_once: int,
    say: Say,
    score: Score,
    before: Callable[[Job], None] = lambda job: None,
    again: str = "the same command",
) -> list[tuple[Job, str]]:
    """Do every job in a process of the module ``worker``; return what failed, and why.

    ``before`` is called before a job starts. Ctrl-C and SIGTERM raise ``Interrupted``; ``again`` is
    the command that goes on then.
    """
    pool = _Pool(list(jobs), worker, at_once, say=say, score=score, before=before)
    with _terminate_is_interrupt():
        try:
            while pool.waiting or pool.live:
                pool.start()
                pool.listen()
        except KeyboardInterrupt:
            pool.stop()
            raise Interrupted(
                f"stopped with {pool.done} of {len(jobs)} runs finished; {again} goes on from the "
                "last round of the others"
            ) from None
        finally:
            pool.kill()
    return pool.failures


class _Pool:
    def __init__(
        self,
        jobs: list[Job],
        worker: str,
        at_once: int,
        *,
        say: Say,
        score: Score,
        before: Callable[[Job], None],
    ) -> None:
        self.waiting, self.total, self.done = jobs, len(jobs), 0
        self.live: dict[int, _Live] = {}
        self.failures: list[tuple[Job, str]] = []
        self._worker, self._at_once = worker, at_once
        self._say, self._score, self._before = say, score, before
        self._selector = selectors.DefaultSelector()
        self._status_s, self._stopping = time.monotonic(), False

    def start(self) -> None:
        """Start as many jobs as there are free places, none before the one that it waits for."""
        while len(self.live) < self._at_once:
            coming = {job.goal for job in (*self.waiting, *(x.job for x in self.live.values()))}
            job = next((job for job in self.waiting if job.after not in coming), None)
            if job is None:
                return
            self.waiting.remove(job)
            self._before(job)
            self._say(f"start  {job.title}")
            live = _started(job, self._worker)
            self.live[live.process.pid] = live
            self._selector.register(live.process.stdout, selectors.EVENT_READ, live)  # type: ignore[arg-type]

    def listen(self, timeout_s: float = 1.0) -> None:
        """Take what the processes say, for at most ``timeout_s``."""
        for key, _ in self._selector.select(timeout_s):
            live: _Live = key.data
            chunk = os.read(key.fd, 65536)
            *lines, live.unread = (live.unread + chunk).split(b"\n")
            for line in lines:
                live.last = {**live.last, **json.loads(line)}
            if not chunk:
                self._selector.unregister(key.fileobj)
                self._ended(live)
        if time.monotonic() - self._status_s > STATUS_EVERY_S:
            self._status_s = time.monotonic()
            for live in self.live.values():
                self._say(f"       {live.job.title}: {_progress(live.last)}")

    def _ended(self, live: _Live) -> None:
        code = live.process.wait()
        del self.live[live.process.pid]
        took = time.monotonic() - live.started
        if code == 0:
            self.done += 1
            score, remark = self._score(live.job, live.last)
            count = f"{self.done}/{self.total}"
            self._say(f"done   {live.job.title}: {score} in {took:.0f} s{remark}  {count}")
        elif not self._stopping:
            self._fail(live, code)
        live.errors.close()

    def _fail(self, live: _Live, code: int) -> None:
        live.errors.seek(0)
        said = live.errors.read().decode(errors="replace").strip()
        by_signal = f"ended by signal {-code}" + (" (out of memory?)" if code == -9 else "")
        error = live.last.get("message") or (by_signal if code < 0 else f"ended with code {code}")
        trace = live.last.get("trace") or said
        if trace:
            live.job.log.parent.mkdir(parents=True, exist_ok=True)
            live.job.log.write_text(f"{trace}\n", encoding="utf-8")
            error += f" (traceback in {live.job.log})"
        self.failures.append((live.job, error))
        self._say(f"failed {live.job.title}: {error}")

    def stop(self) -> None:
        """Let every process finish its round and commit; a second Ctrl-C does not wait."""
        self._stopping = True
        self._say("stopping after the current rounds; press Ctrl-C again to stop at once")
        for live in self.live.values():
            live.process.send_signal(signal.SIGINT)
        with suppress(KeyboardInterrupt):
            while self.live:
                self.listen()

    def kill(self) -> None:
        for live in self.live.values():
            live.process.kill()
            live.process.wait()
            live.errors.close()
        self._selector.close()


def _started(job: Job, worker: str) -> _Live:
    errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed when the process has ended
    process = subprocess.Popen(
        [sys.executable, "-m", worker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,  # Ctrl-C reaches it through us
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # died while starting: its end is reported like any other
        process.stdin.write(json.dumps(job.told).encode() + b"\n")
        process.stdin.flush()  # it stays open: the worker ends when it is closed
    return _Live(job, process, errors)


def _progress(last: Mapping[str, Any]) -> str:
    if "round" not in last:
        return "preparing"
    accuracy = last.get("accuracy")
    score = "" if accuracy is None else f"  {100 * accuracy:.2f} %"
    return f"{last['stage']} {last['round']}/{last['rounds']}{score}"


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


# ---- inside a process ------------------------------------------------------------------------


def work(do: Callable[[Mapping[str, Any], Tell], Mapping[str, Any]]) -> None:
    """Do the job and leave with 0, 130 after an interruption, or 1; ``do`` returns last facts."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to standard error

    def tell(**event: Any) -> None:
        print(json.dumps(event), file=channel, flush=True)

    def end_with_parent() -> None:
        # os.read: a daemon thread inside a buffered read would abort the interpreter's shutdown.
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(PARENT_GONE)

    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_parent, name="parent", daemon=True).start()
    try:
        tell(event="done", **do(job, tell))
    except (Interrupted, KeyboardInterrupt):
        sys.exit(130)
    except RaysimError as wrong:
        tell(event="error", message=str(wrong), trace=getattr(wrong, "trace", ""))
        sys.exit(1)
    except Exception as wrong:  # a defect: the other runs must go on and the report must say it
        message = f"{type(wrong).__name__}: {wrong}"
        tell(event="error", message=message, trace=traceback.format_exc())
        sys.exit(1)


def tell_rounds(tell: Tell) -> Callable[[Any], None]:
    """Return the listener of a run that sends an event after every round."""

    def listen(event: Any) -> None:
        if event.kind == "round":
            accuracy = (event.record.accuracy or {}).get("mean") if event.record else None
            where = {"stage": event.stage, "round": event.round, "rounds": event.rounds}
            tell(event="round", **where, accuracy=accuracy)

    return listen

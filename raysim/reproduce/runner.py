"""Runs the cells of a table that are not there yet, as many at once as the machine allows.

Every run is a process (``worker``), so that one that fails or is killed takes no other with it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from raysim.errors import Interrupted
from raysim.reproduce.plan import Failure, Run
from raysim.reproduce.results import read_result

RUN_BYTES = 1_500_000_000
"""Memory that one run is given when the number of jobs is chosen; the largest measured is less."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
STATUS_EVERY_S = 60.0
Say = Callable[[str], None]


@dataclass
class _Live:
    """A process at work."""

    run: Run
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


def execute(runs: Sequence[Run], *, jobs: int, say: Say) -> list[Failure]:
    """Run everything and return what failed; ``Interrupted`` after Ctrl-C or SIGTERM."""
    pool = _Pool(list(runs), jobs, say)
    with _terminate_is_interrupt():
        try:
            while pool.waiting or pool.live:
                pool.start()
                pool.listen()
        except KeyboardInterrupt:
            pool.stop()
            raise Interrupted(
                f"stopped with {pool.done} of {len(runs)} runs finished; the same command goes on "
                "from the last round of the others"
            ) from None
        finally:
            pool.kill()
    return pool.failures


class _Pool:
    """Processes at work, and runs that wait for one."""

    def __init__(self, runs: list[Run], jobs: int, say: Say) -> None:
        self.waiting, self.total, self.done, self._jobs, self._say = runs, len(runs), 0, jobs, say
        self.live: dict[int, _Live] = {}
        self.failures: list[Failure] = []
        self._selector = selectors.DefaultSelector()
        self._status_s, self._stopping = time.monotonic(), False

    def start(self) -> None:
        """Start as many runs as there are free places."""
        while len(self.live) < self._jobs and (run := self._next()) is not None:
            self.waiting.remove(run)
            if run.job["force"]:  # stopped half-way, it must not count as finished
                Path(run.job["goal"]).unlink(missing_ok=True)
            self._say(f"start  {run.title}")
            live = _started(run)
            self.live[live.process.pid] = live
            self._selector.register(live.process.stdout, selectors.EVENT_READ, live)  # type: ignore[arg-type]

    def _next(self) -> Run | None:
        """Return the first run whose optimum, if it may reuse one, is not still to come."""
        coming = {run.job["goal"] for run in self.waiting}
        coming |= {live.run.job["goal"] for live in self.live.values()}
        for run in self.waiting:
            optimum = run.job.get("optimum")
            if optimum is None or optimum["path"] not in coming:
                return run
        return None

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
                self._say(f"       {live.run.title}: {_progress(live.last)}")

    def _ended(self, live: _Live) -> None:
        code = live.process.wait()
        del self.live[live.process.pid]
        took = time.monotonic() - live.started
        if code == 0:
            self.done += 1
            again = ", optimum's training reused" if live.last.get("reused") else ""
            count = f"{self.done}/{self.total}"
            self._say(
                f"done   {live.run.title}: {_score(live.run)} in {took:.0f} s{again}  {count}"
            )
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
            log = Path(live.run.job["goal"]).with_suffix(".error.txt")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"{trace}\n", encoding="utf-8")
            error += f" (traceback in {log})"
        self.failures.append(Failure(live.run.cell.address, live.run.seed, error))
        self._say(f"failed {live.run.title}: {error}")

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
        """End whatever is left."""
        for live in self.live.values():
            live.process.kill()
            live.process.wait()
            live.errors.close()
        self._selector.close()


def _started(run: Run) -> _Live:
    """Start the process of a run and hand it its job."""
    errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed when the process has ended
    process = subprocess.Popen(
        [sys.executable, "-m", "raysim.reproduce.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **ONE_THREAD},
        start_new_session=True,  # Ctrl-C reaches it through us
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # died while starting: its end is reported like any other
        process.stdin.write(json.dumps(run.job).encode() + b"\n")
        process.stdin.flush()  # it stays open: the worker ends when it is closed
    return _Live(run, process, errors)


def _score(run: Run) -> str:
    result = read_result(Path(run.job["goal"]))
    if "accuracy_percent" in result:
        return f"{result['accuracy_percent']:.2f} %"
    return f"{len(result['values'])} values"


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

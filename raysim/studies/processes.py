"""The back end of studies on one machine: a process per cell.

``Processes`` starts them; the module itself is what runs in each: it reads a job from standard
input and sends events on standard output.
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from raysim.studies.study import Event, perform

RUN_BYTES = 1_500_000_000
"""Memory that one run is given when the number of jobs is chosen; the largest measured is less."""
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
PARENT_GONE = 4


def default_jobs() -> int:
    """Return one job per CPU that this process may use, fewer where memory is short."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return cpus
    return max(1, min(cpus, free // RUN_BYTES))


@dataclass
class _Live:
    key: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    unread: bytes = b""


class Processes:
    """Runs ``at_once`` cells at the same time; one alone uses the runtime of its config."""

    how = "each in a process of its own (runtime.kind=local; --jobs 1 uses the config's)"

    def __init__(self, at_once: int) -> None:
        self.at_once, self.local = at_once, at_once > 1
        self._live: list[_Live] = []
        self._selector = selectors.DefaultSelector()

    def start(self, key: str, told: Mapping[str, Any]) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed when the process has ended
        process = subprocess.Popen(
            [sys.executable, "-m", "raysim.studies.processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # Ctrl-C reaches it through us
        )
        assert process.stdin is not None
        assert process.stdout is not None
        live = _Live(key, process, errors)
        self._live.append(live)
        self._selector.register(process.stdout, selectors.EVENT_READ, live)
        with suppress(BrokenPipeError):  # died while starting: its end is reported like any other
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.flush()  # it stays open: the process ends when it is closed

    def events(self, timeout_s: float) -> Iterator[tuple[str, Event]]:
        for selected, _ in self._selector.select(timeout_s):
            live: _Live = selected.data
            chunk = os.read(selected.fd, 65536)
            *lines, live.unread = (live.unread + chunk).split(b"\n")
            for line in lines:
                yield live.key, json.loads(line)
            if not chunk:
                self._selector.unregister(selected.fileobj)
                code = live.process.wait()
                live.errors.seek(0)
                said = live.errors.read().decode(errors="replace").strip()
                live.errors.close()
                self._live.remove(live)
                yield live.key, {"event": "end", "code": code, "said": said}

    def stop(self) -> None:
        for live in self._live:
            live.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        for live in self._live:
            live.process.kill()
            live.process.wait()
            live.errors.close()
        self._selector.close()


def main() -> None:
    """Do the job of standard input; leave when whoever started this process has gone."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to standard error

    def tell(**event: Any) -> None:
        print(json.dumps(event), file=channel, flush=True)

    def end_with_parent() -> None:
        # os.read: a daemon thread inside a buffered read would abort the interpreter's shutdown.
        while os.read(sys.stdin.fileno(), 1024):
            pass
        os._exit(PARENT_GONE)

    told = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=end_with_parent, name="parent", daemon=True).start()
    sys.exit(perform(told, tell))


if __name__ == "__main__":
    main()

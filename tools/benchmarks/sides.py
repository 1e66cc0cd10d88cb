"""The sides of a comparison: child processes that take turns, one JSON line per message."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parents[1]
END_S = 60.0
"""How long a side may take to end after its input was closed."""


class SideFailed(RuntimeError):
    """A child process ended or answered with an error."""


class Side:
    """A child process that is idle unless it is asked something."""

    def __init__(self, command: Sequence[str]) -> None:
        self.name = command[0]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the side
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(),
        )

    @property
    def pid(self) -> int:
        """Process id, the root of the side's tree."""
        return self._process.pid

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send one message and return the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("it ended") from None
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Return the next line the side writes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed("it ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def close(self) -> None:
        """Close the side's input, which ends it; terminate it when it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._errors.close()

    def _failed(self, why: str) -> SideFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.returncode
        ended = f" (exit code {code})" if code is not None else ""
        self._errors.seek(0)
        tail = "".join(self._errors.readlines()[-20:])
        return SideFailed(f"{self.name} failed: {why}{ended}\n{tail}")


@contextlib.contextmanager
def side(*command: str) -> Iterator[Side]:
    """Start a side and end it with the block."""
    started = Side(command)
    try:
        yield started
    finally:
        started.close()


@contextlib.contextmanager
def python_side(module: str, **settings: Any) -> Iterator[Side]:
    """Start ``benchmarks.<module>`` with ``settings`` as its argument."""
    with side("-m", f"benchmarks.{module}", json.dumps(settings)) as started:
        started.name = module
        yield started


def environment() -> dict[str, str]:
    """Return the environment of every child: no Ray cluster to join, this folder importable."""
    variables = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    paths = [str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**variables, "PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0"}


def seconds_until(command: Sequence[str], marker: str) -> tuple[float, int]:
    """Return seconds from start to the first output line with ``marker``, and peak memory."""
    from benchmarks.memory import TreeMemory

    with tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment(),
        )
        assert child.stdout is not None
        seen = None
        with TreeMemory(child.pid) as memory:
            for line in child.stdout:
                if seen is None and marker in line:
                    seen = time.perf_counter() - started
                    memory.sample()  # the process may end before the next sample
            child.wait()
        if seen is None or child.returncode:
            errors.seek(0)
            raise SideFailed(f"{' '.join(command)} ended with {child.returncode}\n{errors.read()}")
    return seen, memory.peak


# ---- inside a child ------------------------------------------------------------------------


class Channel:
    """The child's end: messages in, answers out; anything printed goes to standard error."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def receive(self) -> dict[str, Any]:
        """Return the next message; leave when the parent is gone."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(0)
        message: dict[str, Any] = json.loads(line)
        return message

    def send(self, **answer: Any) -> None:
        """Answer."""
        self._out.write(json.dumps(answer) + "\n")
        self._out.flush()


Handler = Callable[..., Mapping[str, Any]]


def serve(channel: Channel, handlers: Mapping[str, Handler]) -> None:
    """Answer {"do": name, ...} with ``handlers[name](...)`` until the parent closes the input."""
    while True:
        message = channel.receive()
        handler = handlers[message.pop("do")]
        try:
            answer = handler(**message)
        except Exception as wrong:
            channel.send(error=f"{type(wrong).__name__}: {wrong}")
            raise
        channel.send(**answer)

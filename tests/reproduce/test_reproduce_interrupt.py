"""Killed and stopped: nothing that is finished is lost or repeated, the rest goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ONE = {"title": "", "columns": "m2 m3", "datasets": "digits", "rows": "single"}
LONG = """
base: quickstart
name: tiny
model: small_cnn
train: {rounds: 25, epochs: 1}
"""
DONE_ROUNDS = 4


def wait_for(condition, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rounds_in(out: Path, cell: str) -> list[str]:
    files = list((out / "runs").glob(f"{cell.replace('/', '-')}-seed0-*/rounds.jsonl"))
    return files[0].read_text(encoding="utf-8").splitlines() if files else []


def hear_ctrl_c() -> None:
    """Undo what a shell does to background jobs: they ignore SIGINT, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def started(line: list[str]) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, **pipes, start_new_session=True, preexec_fn=hear_ctrl_c)


def results(out: Path) -> dict[str, dict]:
    files = sorted((out / "rcc-pfl").rglob("seed0.json"))
    return {path.parent.parent.name: json.loads(path.read_text()) for path in files}


@pytest.fixture
def interrupted(as_process, tmp_path):
    """Return a function that sends a signal in the middle of the second run: (code, rounds)."""

    def run(number: int, out: Path) -> tuple[int, list[str]]:
        process = started(as_process(ONE, LONG, "--seeds", 1, "--jobs", 1, "--out", out))
        try:
            wait_for(lambda: len(rounds_in(out, "digits/m3/single")) > DONE_ROUNDS, process)
            os.kill(process.pid, number)
            process.communicate(timeout=120)
        finally:
            process.kill()
        return process.returncode, rounds_in(out, "digits/m3/single")

    return run


def finish(as_process, out: Path) -> str:
    line = as_process(ONE, LONG, "--seeds", 1, "--jobs", 1, "--out", out)
    done = subprocess.run(line, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_the_same_command_goes_on_to_the_same_results(
    as_process, interrupted, tmp_path, number, code
):
    finish(as_process, tmp_path / "unbroken")
    out = tmp_path / "out"
    left, before = interrupted(number, out)
    first = out / "rcc-pfl/tiny/full/digits/m2/single/seed0.json"
    stamp = first.stat().st_mtime_ns
    assert left == code
    assert results(out).keys() == {"m2"}

    said = finish(as_process, out)

    unbroken, found = results(tmp_path / "unbroken"), results(out)
    assert first.stat().st_mtime_ns == stamp
    assert "1 of 2 runs to do" in said
    # A line holds its round's seconds, so equal lines were not computed again.
    assert rounds_in(out, "digits/m3/single")[:DONE_ROUNDS] == before[:DONE_ROUNDS]
    for cell in ("m2", "m3"):
        for key in ("accuracy", "series", "digest", "groups", "bytes", "config"):
            assert found[cell][key] == unbroken[cell][key]

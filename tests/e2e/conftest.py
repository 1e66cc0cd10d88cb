"""The command line, in this process and as a real one, and pictures of folders."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Return a function that runs ``raysim ARGUMENTS...`` in this process."""
    from raysim.cli.main import main

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        logging.getLogger("raysim").handlers.clear()  # they hold the standard error of an old call
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        logging.getLogger("raysim").handlers.clear()
        logging.captureWarnings(False)
        return Said(int(left.value.code or 0), said.out, said.err)

    return call


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., Said]:
    """Return a function that runs ``raysim ARGUMENTS...`` as a process of its own."""

    def call(*arguments: object, prefix: tuple[str, ...] = (), **environment: str) -> Said:
        line = [*prefix, sys.executable, "-m", "raysim", *map(str, arguments)]
        done = subprocess.run(
            line,
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=180,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def picture() -> Callable[[Path], dict[str, object]]:
    """Return a function that says what is below a folder: names, sizes, times and contents."""

    def take(folder: Path) -> dict[str, object]:
        return {
            str(path.relative_to(folder)): (
                "folder" if path.is_dir() else (stat.st_size, stat.st_mtime_ns, _digest(path))
            )
            for path in sorted(folder.rglob("*"))
            for stat in [path.stat()]
        }

    return take


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

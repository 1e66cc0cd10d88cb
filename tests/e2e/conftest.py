"""The command line, in this process and as a real one, and pictures of folders."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
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


BASE = ("quickstart", "train.rounds=2", "train.epochs=1", "runtime.kind=local")
"""The short run of this folder."""


@pytest.fixture(scope="session")
def _finished_run(_own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from raysim.config import load_config
    from raysim.experiment import Experiment

    path = tmp_path_factory.mktemp("finished") / "run"
    Experiment(load_config(BASE[0], [*BASE[1:], f"output={path}"])).run()
    return path


@pytest.fixture
def base() -> tuple[str, ...]:
    """Config and overrides of the run in ``old``."""
    return BASE


@pytest.fixture
def old(_finished_run: Path, tmp_path: Path) -> Path:
    """A finished run in a folder of its own: what bad input must not destroy."""
    return Path(shutil.copytree(_finished_run, tmp_path / "old" / "run"))


@pytest.fixture
def refused() -> Callable[..., None]:
    """Return a function that checks an error: exit code, text, one readable sentence."""

    def check(said: Said, code: int, parts: Sequence[str]) -> None:
        assert said.code == code, said.err
        assert [part for part in parts if part not in said.err] == [], said.err
        assert "Traceback" not in said.err + said.out
        assert said.err.startswith("raysim: ")
        assert said.out == ""

    return check

"""Small tables on the digits, run by the real command."""

from __future__ import annotations

import functools
import json
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from raysim.config import bundled
from raysim.studies.processes import Processes
from raysim.studies.reproduce.papers import PAPERS, TABLES, Table, read_table
from raysim.studies.reproduce.plan import plan
from raysim.studies.study import run_study

RAW = {
    "title": "accuracy on the digits",
    "settings": ["data.noise={kind: class_independent, rate: 0.25}"],
    "columns": "m3",
    "numbers": "digits optimum 91.5±0.5\ndigits rcc_pfl -\ndigits single -",
}
NAME = "rcc-pfl/tiny"
BASE = """
base: quickstart
name: tiny
train: {rounds: 3, epochs: 1}
"""
SMALL = """
base: tiny.yaml
train: {rounds: 2}
"""


@pytest.fixture(scope="package", autouse=True)
def _configs_listed_once() -> Iterator[None]:
    """Tables load hundreds of configs; listing the bundled ones takes half of that time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "config_files", functools.cache(bundled.config_files))
        yield


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object on the last line."""
        return json.loads(self.out.splitlines()[-1])


def put_table(folder: Path, raw: dict[str, Any], text: str, **paper: Any) -> Table:
    """Make a table that runs the config ``text``; small has two rounds."""
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    (folder / "tiny_small.yaml").write_text(SMALL, encoding="utf-8")
    own = replace(PAPERS["rcc-pfl"], configs=str(folder / "tiny{small}.yaml"), **paper)
    TABLES[NAME] = read_table(own, "tiny", raw)
    return TABLES[NAME]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    """Put the tiny table among the others; the function puts a changed one there."""
    folder = tmp_path / "configs"
    folder.mkdir()
    monkeypatch.setitem(TABLES, NAME, None)  # is gone again afterwards

    def put(raw: dict[str, Any] = RAW, text: str = BASE, **paper: Any) -> Table:
        return put_table(folder, raw, text, **paper)

    put()
    return put


@pytest.fixture
def reproduce(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Said]:
    """Return a function that runs ``raysim reproduce ARGUMENTS...`` with results in ``out``."""
    from raysim.cli.main import main

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        logging.getLogger("raysim").handlers.clear()
        with pytest.raises(SystemExit) as left:
            main(["reproduce", *map(str, arguments), "--out", str(tmp_path / "out")])
        logging.getLogger("raysim").handlers.clear()
        return Said(int(left.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def finished(_own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the tiny table's results, and optimum's for seed 1 too; read-only."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TABLES, NAME, None)
        table = put_table(folder, RAW, BASE)
        out = folder / "out"
        runs, failures = plan(table, table.cells, [0], scale="full", out=out)
        again, _ = plan(table, table.cells[:1], [1], scale="full", out=out)
        assert not failures
        outcomes = run_study([*runs, *again], backend=Processes(2), say=print, errors=out)
        assert [outcome.error for outcome in outcomes] == [None] * 4
        yield out


@pytest.fixture
def result_of() -> Callable[..., dict[str, Any]]:
    """Return a function that reads one result of the tiny table."""

    def read(out: Path, method: str, seed: int = 0, scale: str = "full") -> dict[str, Any]:
        path = out / NAME / scale / "digits" / "m3" / method / f"seed{seed}.json"
        return json.loads(path.read_text(encoding="utf-8"))

    return read


@pytest.fixture
def as_process(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that gives the command line of ``reproduce`` with a table of its own."""

    def line(raw: dict[str, Any], text: str, *arguments: object) -> list[str]:
        folder = tmp_path / "configs"
        folder.mkdir(exist_ok=True)
        (folder / "tiny.yaml").write_text(text, encoding="utf-8")
        script = f"""
            import sys
            from dataclasses import replace
            from raysim.studies.reproduce.papers import PAPERS, TABLES, read_table
            own = replace(PAPERS["rcc-pfl"], configs={str(folder / "tiny{small}.yaml")!r})
            TABLES[{NAME!r}] = read_table(own, "tiny", {raw!r})
            from raysim.cli.main import main
            main(["reproduce", {NAME!r}, *sys.argv[1:]])
        """
        return [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]

    return line

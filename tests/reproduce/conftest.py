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
from raysim.studies.reproduce import recipes
from raysim.studies.reproduce.published import GROUPS
from raysim.studies.reproduce.recipes import Target
from raysim.studies.reproduce.tables import printed_grid

TINY = Target(
    name="rcc-pfl/tiny",
    title="accuracy on the digits",
    kind="accuracy",
    noise="class_independent",
    datasets=("digits",),
    methods=("optimum", "rcc_pfl", "single"),
    groups=(3,),
)
PRINTED = "digits optimum 90.0±1.0 91.5±0.5 92.0±0.25"
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


def patch_recipes(patch: pytest.MonkeyPatch, folder: Path, target: Target, text: str) -> None:
    """Make ``target`` a table that runs the config ``text``; small has two rounds."""
    (folder / "tiny.yaml").write_text(text, encoding="utf-8")
    (folder / "tiny_small.yaml").write_text(SMALL, encoding="utf-8")
    printed = printed_grid(PRINTED, [f"m{groups}" for groups in GROUPS])
    patch.setitem(recipes.TARGETS, target.name, replace(target, printed=printed))
    patch.setitem(recipes.BASES, ("rcc-pfl", "digits", "full"), str(folder / "tiny.yaml"))
    patch.setitem(recipes.BASES, ("rcc-pfl", "digits", "small"), str(folder / "tiny_small.yaml"))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put the tiny table into the recipes; the function puts a changed one there."""
    folder = tmp_path / "configs"
    folder.mkdir()

    def put(target: Target = TINY, text: str = BASE) -> None:
        patch_recipes(monkeypatch, folder, target, text)

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
    from raysim.studies.reproduce.plan import plan
    from raysim.studies.reproduce.runner import execute

    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch_recipes(patch, folder, TINY, BASE)
        out = folder / "out"
        runs, failures = plan(TINY, TINY.cells, [0], scale="full", out=out)
        again, _ = plan(TINY, TINY.cells[:1], [1], scale="full", out=out)
        runs += again
        assert not failures
        assert not execute(runs, jobs=2, say=lambda text: None)
        yield out


@pytest.fixture
def result_of() -> Callable[..., dict[str, Any]]:
    """Return a function that reads one result of the tiny table."""

    def read(out: Path, method: str, seed: int = 0, scale: str = "full") -> dict[str, Any]:
        path = out / TINY.name / scale / "digits" / "m3" / method / f"seed{seed}.json"
        return json.loads(path.read_text(encoding="utf-8"))

    return read


@pytest.fixture
def as_process(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that gives the command line of ``reproduce`` with patched recipes."""

    def line(target: Target, text: str, *arguments: object) -> list[str]:
        folder = tmp_path / "configs"
        folder.mkdir(exist_ok=True)
        (folder / "tiny.yaml").write_text(text, encoding="utf-8")
        script = f"""
            import sys
            from raysim.config import bundled
            from raysim.studies.reproduce import recipes
            from raysim.studies.reproduce.recipes import Target
            recipes.TARGETS[{target.name!r}] = {target!r}
            recipes.BASES["rcc-pfl", "digits", "full"] = {str(folder / "tiny.yaml")!r}
            from raysim.cli.main import main
            main(["reproduce", {target.name!r}, *sys.argv[1:]])
        """
        return [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]

    return line

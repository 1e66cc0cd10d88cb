"""A run directory may come from anybody: nothing that it names is imported unasked."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import raysim
from raysim.cli.assign import command as assign
from raysim.cli.export import command as export
from raysim.cli.fetch import command as fetch
from raysim.cli.predict import command as predict
from raysim.cli.run import command as run
from raysim.cli.watch import command as watch
from raysim.errors import RaysimError
from raysim.methods import METHODS
from raysim.models.zoo import MODELS

OWN = """
from pathlib import Path
from raysim.methods import METHODS
from raysim.methods.baselines import Single
from raysim.models.zoo import MODELS
from raysim.models.zoo.dense import Logistic
from raysim.settings import settings

Path("ran").touch()

@METHODS.register("mine_or_not")
@settings
class Mine(Single):
    pass

@MODELS.register("linear_or_not")
@settings
class Linear(Logistic):
    pass
"""
SHORT = ("train.rounds=2", "train.epochs=1", "runtime.kind=local")
READING = {
    "watch": (watch, "--once"),
    "predict": (predict, "--client", "0", "--data-test"),
    "assign": (assign, "new.npy"),
    "export": (export,),
    "fetch": (fetch, "--to", "home"),
}
NEEDING = {**READING, "fetch": (fetch,), "watch": None, "assign": None}
"""Verbs that cannot do their work without the method of the run."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "run"
    raysim.run("quickstart", *SHORT, f"output={path}")
    return path


@pytest.fixture
def folder(finished, tmp_path, monkeypatch):
    """The current folder with somebody's run in it, and the module that its config names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "somebodys.py").write_text(OWN)
    np.save(tmp_path / "new.npy", np.random.default_rng(0).random((40, 144)))
    edit(tmp_path / "run", imports=["somebodys"])
    yield tmp_path
    sys.modules.pop("somebodys", None)
    METHODS._classes.pop("mine_or_not", None)
    MODELS._classes.pop("linear_or_not", None)


def edit(where, **values):
    """Change the config of a run as whoever made it could have."""
    path = where / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))
    (where / "checksums.json").unlink(missing_ok=True)


def call(command, *arguments):
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


@pytest.mark.parametrize("verb", READING)
def test_reading_verbs_import_nothing(folder, verb):
    command, *more = READING[verb]

    done = call(command, "run", *more)

    assert done.exit_code == 0, done.output
    assert not (folder / "ran").exists()


def test_a_module_of_a_run_is_given_without_imports(folder):
    raysim.load_result("run").module("group/0")

    assert not (folder / "ran").exists()


@pytest.mark.parametrize("verb", [verb for verb, words in NEEDING.items() if words])
def test_what_cannot_be_read_without_the_module_says_which_to_import(folder, verb):
    command, *more = NEEDING[verb]
    edit(folder / "run", method={"name": "mine_or_not"})
    shutil.rmtree(folder / "run/models")

    with pytest.raises(RaysimError, match="--import somebodys"):
        call(command, "run", *more)

    assert not (folder / "ran").exists()
    assert call(command, "run", *more, "--import", "somebodys").exit_code == 0
    assert (folder / "ran").exists()


def test_a_network_of_ones_own_is_named_with_its_module(folder):
    raysim.run("quickstart", *SHORT, "model=linear_or_not", "output=own", imports=["somebodys"])
    MODELS._classes.pop("linear_or_not")
    del sys.modules["somebodys"]
    (folder / "ran").unlink()

    with pytest.raises(RaysimError, match="--import somebodys"):
        raysim.load_result("own").module("group/0")

    assert not (folder / "ran").exists()


def test_watch_says_what_it_leaves_out(folder):
    edit(folder / "run", method={"name": "mine_or_not"})

    unnamed = call(watch, "run", "--once")
    named = call(watch, "run", "--once", "--import", "somebodys")

    assert "--import somebodys" in unnamed.stderr
    assert "mine_or_not" not in unnamed.stdout
    assert "mine_or_not" in named.stdout
    assert named.stderr == ""


def test_a_runs_config_is_run_only_after_its_modules_were_named(folder):
    again = ("run/config.yaml", "output=again")

    with pytest.raises(RaysimError, match="--import somebodys"):
        call(run, *again)
    (folder / "mine.yaml").write_text("base: run/config.yaml\noutput: again\n")
    with pytest.raises(RaysimError, match="--import somebodys"):
        call(run, "mine.yaml")

    assert not (folder / "ran").exists()
    assert call(run, *again, "--import", "somebodys").exit_code == 0
    assert (folder / "ran").exists()


def test_a_runs_config_is_known_by_another_name_and_with_little_beside_it(folder):
    (folder / "mine.yaml").symlink_to("run/config.yaml")
    (folder / "models_only").mkdir()
    shutil.copy(folder / "run/config.yaml", folder / "models_only")
    shutil.copytree(folder / "run/models", folder / "models_only/models")

    for config in ("mine.yaml", "models_only/config.yaml"):
        with pytest.raises(RaysimError, match="--import somebodys"):
            call(run, config, "output=again")

    assert not (folder / "ran").exists()


def test_a_config_of_ones_own_needs_no_option(folder):
    (folder / "mine.yaml").write_text("base: quickstart\nimports: [somebodys]\n")

    assert call(run, "mine.yaml", *SHORT, "output=again").exit_code == 0
    assert (folder / "ran").exists()


def test_resuming_with_a_config_of_ones_own_imports_nothing_else(folder):
    with pytest.raises(RaysimError, match="imports"):
        call(run, "quickstart", *SHORT, "output=run", "--resume")

    assert not (folder / "ran").exists()

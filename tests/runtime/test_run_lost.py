"""A run whose directory is deleted, replaced or changed while it goes on ends with an error."""

from __future__ import annotations

import shutil
import uuid

import pytest

from raysim.config import load_config
from raysim.errors import RaysimError
from raysim.experiment import Experiment
from raysim.storage.objects import open_storage

SHORT = ("train.rounds=3", "train.epochs=1", "runtime.kind=local")


def deleted(path):
    shutil.rmtree(path)


def moved(path):
    path.rename(path.with_name("moved"))


def replaced(path):
    """A copy of the run takes its place, as ``rsync`` or a second hand may do it."""
    moved(path)
    shutil.copytree(path.with_name("moved"), path)


def without_records(path):
    (path / "rounds.jsonl").unlink()


def with_other_records(path):
    file = path / "rounds.jsonl"
    file.write_text(file.read_text().replace('"seconds"', '"secondz"'))


def emptied(path):
    """``rm -rf run/*``: the lock file stays."""
    for found in path.glob("[!.]*"):
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def without_head(path):
    for name in ("config.yaml", "environment.json"):
        (path / name).unlink()


@pytest.mark.parametrize(
    ("event", "count"), [("start", 1), ("round", 2), ("commit", 2), ("round", 5), ("commit", 5)]
)
@pytest.mark.parametrize("change", [deleted, moved, replaced, emptied, without_head])
def test_no_result_is_written_into_a_place_that_was_changed(tmp_path, change, event, count):
    path = tmp_path / "run"
    refuse_result(path, change, event, count)
    assert path.exists() == (change not in (deleted, moved)), "it was written again"


@pytest.mark.parametrize(
    ("event", "count"), [("round", 2), ("commit", 2), ("round", 5), ("commit", 5)]
)
@pytest.mark.parametrize("change", [without_records, with_other_records])
def test_no_result_is_written_that_the_records_do_not_back(tmp_path, change, event, count):
    refuse_result(tmp_path / "run", change, event, count)


@pytest.mark.parametrize("name", ["environment.json", "artifacts/similarity.npy"])
def test_no_result_is_written_without_the_files_beside_it(tmp_path, name):
    refuse_result(tmp_path / "run", lambda path: (path / name).unlink(), "commit", 5)
    assert not (tmp_path / "run/models").exists()


def test_a_config_that_is_gone_is_noticed_at_the_next_commit(tmp_path):
    path = tmp_path / "run"
    refuse_result(path, lambda path: (path / "config.yaml").unlink(), "commit", 2)
    assert len((path / "rounds.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(("folder", "count"), [("run", 2), ("run/.lock", 5)])
def test_no_result_is_written_to_a_url_whose_objects_are_gone(folder, count):
    above = f"memory://{uuid.uuid4().hex}"
    head, _, name = f"{above}/{folder}".rpartition("/")
    refuse_result(f"{above}/run", lambda _: open_storage(head).remove_folder(name), "commit", count)


def refuse_result(path, change, event, count):
    seen = []

    def meddle(found):
        if found.kind == event:
            seen.append(found)
            if len(seen) == count:
                change(path)

    config = load_config("quickstart", [*SHORT, f"output={path}"])
    with pytest.raises(RaysimError) as caught:
        Experiment(config).run(listeners=[meddle])

    assert caught.value.exit_code == 1
    assert str(path) in str(caught.value)
    assert not open_storage(path).exists("result.json")

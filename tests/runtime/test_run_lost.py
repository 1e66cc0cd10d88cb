"""A run whose directory is deleted, replaced or changed while it goes on ends with an error."""

from __future__ import annotations

import shutil

import pytest

from raysim.config import load_config
from raysim.errors import RaysimError
from raysim.experiment import Experiment

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


@pytest.mark.parametrize(
    ("event", "count"), [("round", 2), ("commit", 2), ("round", 5), ("commit", 5)]
)
@pytest.mark.parametrize("change", [deleted, moved, replaced, without_records, with_other_records])
def test_no_result_is_written_that_the_records_do_not_back(tmp_path, change, event, count):
    path = tmp_path / "run"
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
    assert not (path / "result.json").exists()
    assert path.exists() == (change not in (deleted, moved)), "it was written again"

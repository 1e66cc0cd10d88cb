"""One wrong bit in a run directory is noticed by whoever reads it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import raysim
from raysim.config import load_config
from raysim.errors import CheckpointError, DataError, RaysimError
from raysim.experiment import Experiment
from raysim.report.records import read_runs
from raysim.runs.folder import RunFolder
from raysim.runs.models import RunModels, export_models
from raysim.runs.record import RoundRecord
from raysim.runs.saved_models import load_model
from raysim.runs.transfer import copy
from raysim.storage.objects import open_storage

SHORT = ("train.rounds=2", "train.epochs=1", "runtime.kind=local")
READING = {
    "config.yaml": lambda run: run.config,
    "environment.json": lambda run: run.environment,
    "rounds.jsonl": lambda run: run.records,
    "artifacts/similarity.npy": lambda run: run.similarity,
    "artifacts/repaired_labels.npy": lambda run: run.artifact("repaired_labels"),
    "models/index.json": lambda run: run.model_names,
    "models/group-0.safetensors": lambda run: run.module("group/0"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "run"
    raysim.run("quickstart", *SHORT, f"output={path}")
    return path


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


@pytest.fixture
def unfinished(tmp_path):
    """A run that was left after its third round."""
    path = tmp_path / "unfinished"
    experiment = Experiment(load_config("quickstart", [*SHORT, f"output={path}"]))
    with experiment.rounds() as rounds:
        for _ in range(3):
            next(rounds)
    return path


def flip(path, at):
    """Turn one bit around, at a share of the file's length."""
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("at", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("name", READING)
def test_a_flipped_bit_is_noticed(run, name, at):
    flip(run / name, at)

    with pytest.raises(RaysimError, match=name.replace(".", r"\.")) as caught:
        READING[name](raysim.load_result(run))

    assert str(run) in str(caught.value)


def test_a_flipped_bit_in_the_result_is_noticed(run):
    path = run / "result.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))

    with pytest.raises(DataError, match=r"result\.json is damaged"):
        raysim.load_result(run)


@pytest.mark.parametrize("verified", [True, False])
def test_an_empty_config_is_noticed(run, verified):
    (run / "config.yaml").write_bytes(b"")
    if not verified:
        (run / "checksums.json").unlink()

    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        _ = raysim.load_result(run).config
    with pytest.raises(RaysimError, match=r"config\.yaml"):
        _ = RunModels(run).config


def test_lost_records_are_noticed(run):
    (run / "rounds.jsonl").unlink()

    with pytest.raises(CheckpointError, match=r"rounds\.jsonl is damaged"):
        _ = raysim.load_result(run).records


def test_damaged_weights_are_noticed_in_a_file_that_left_its_run(run, tmp_path):
    file = tmp_path / "model.safetensors"
    shutil.copy(run / "models/group-0.safetensors", file)
    assert load_model(file).build() is not None
    flip(file, 0.9)

    with pytest.raises(DataError, match=r"model\.safetensors"):
        load_model(file)


def test_the_report_names_a_damaged_file(run):
    flip(run / "rounds.jsonl", 0.5)
    flip(run / "artifacts/similarity.npy", 0.9)

    (found,), problems = read_runs([str(run)])
    problems = [*problems, *(found.problems if found.artifact("similarity", 2) is None else [])]

    assert any("rounds.jsonl" in problem for problem in problems)
    assert any("similarity.npy" in problem for problem in problems)


def test_a_run_of_before_is_read_unverified(run):
    (run / "checksums.json").unlink()
    index = json.loads((run / "models/index.json").read_text())
    del index["sha256"]
    for entry in index["files"]:
        del entry["sha256"]
    (run / "models/index.json").write_text(json.dumps(index))

    result = raysim.load_result(run)

    assert not result.is_verified
    for read in READING.values():
        read(result)


def test_a_run_of_today_is_verified(run):
    assert raysim.load_result(run).is_verified


def test_damaged_checksums_are_named(run):
    flip(run / "checksums.json", 0.0)

    with pytest.raises(RaysimError, match=r"checksums\.json is damaged"):
        _ = raysim.load_result(run).records


@pytest.mark.parametrize(
    "content",
    [
        '{"sha255": {}}',
        '{"sha256": []}',
        '{"sha256": {"rounds.jsonl": []}}',
        '{"sha256": {"rounds.jsonl": {"sha255": []}}}',
        '{"sha256": {"rounds.jsonl": {"sha256": 3}}}',
        '{"sha256": {"rounds.jsonl": {"sha256": [3]}}}',
        '{"sha256": {"rounds.jsonl": {"sha256": ["a"], "bytes": "7"}}}',
        "[]",
    ],
)
def test_checksums_of_another_shape_are_named(run, unfinished, content):
    for path in (run, unfinished):
        (path / "checksums.json").write_text(content)

    def resume():
        Experiment(load_config("quickstart", [*SHORT, f"output={unfinished}"])).run(resume=True)

    readers = [
        lambda: raysim.load_result(run).records,
        lambda: copy(open_storage(run), run.parent / "copy", models=False),
        resume,
    ]
    for read in readers:
        with pytest.raises(RaysimError, match=r"checksums\.json is damaged"):
            read()
    _, problems = read_runs([str(run)])
    assert any("checksums.json is damaged" in problem for problem in problems)


def test_models_made_again_are_as_good(run):
    export_models(run)

    assert raysim.load_result(run).module("group/0") is not None


# ---- a run that goes on ------------------------------------------------------------------------


def test_a_run_that_goes_on_can_be_read_at_any_time(tmp_path):
    path = tmp_path / "run"
    seen = []

    def read(event):
        if event.kind == "start":
            return
        result = raysim.load_result(path)
        seen.append(len(result.records))
        for name in result.artifacts:
            result.artifact(name)
        assert result.config
        assert result.environment

    overrides = [*SHORT, "method=selfie", "method.warmup_rounds=1", "train.rounds=4"]
    config = load_config("quickstart", [*overrides, "method.history=2", f"output={path}"])
    Experiment(config).run(listeners=[read])

    assert seen == [r for r in range(1, 6) for _ in ("recorded", "committed")]


def test_a_copy_of_a_run_that_goes_on_is_not_damaged(tmp_path):
    path, copies = tmp_path / "run", []

    def fetch(event):
        if event.kind != "start":
            copies.append(tmp_path / f"copy{len(copies)}")
            copies[-1].mkdir()
            copy(open_storage(path), copies[-1], models=False)

    raysim.run("quickstart", *SHORT, f"output={path}", listeners=[fetch])

    for folder in copies:
        result = raysim.load_result(folder)
        assert result.is_verified
        assert result.records
        for name in result.artifacts:
            result.artifact(name)


def test_an_artifact_that_was_announced_and_not_written_is_no_damage(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    folder.open(force=False)
    folder.artifact("labels", np.zeros(3))
    folder.append(RoundRecord(round=1))
    folder.seal()
    write = folder.storage.write

    def killed(name, content):
        if name.startswith("artifacts/"):
            raise KeyboardInterrupt
        write(name, content)

    monkeypatch.setattr(folder.storage, "write", killed)
    folder.artifact("labels", np.ones(3))
    with pytest.raises(KeyboardInterrupt):
        folder.append(RoundRecord(round=2))
    folder.close()

    again = RunFolder(tmp_path / "run")
    again.open(force=False)
    again.keep_records(1)
    again.seal()
    assert again.array("labels").tolist() == [0, 0, 0]
    again.artifact("labels", np.full(3, 2.0))
    again.append(RoundRecord(round=2))
    assert RunFolder(tmp_path / "run").array("labels").tolist() == [2, 2, 2]
    again.close()


@pytest.mark.parametrize("name", ["rounds.jsonl", "config.yaml", "artifacts/repaired_labels.npy"])
def test_resuming_notices_a_flipped_bit(unfinished, name):
    flip(unfinished / name, 0.6)

    config = load_config("quickstart", [*SHORT, f"output={unfinished}"])
    with pytest.raises(RaysimError, match=name.replace(".", r"\.")):
        Experiment(config).run(resume=True)

    assert not (unfinished / "result.json").exists()


@pytest.mark.parametrize("name", ["rounds.jsonl", "environment.json", "artifacts/similarity.npy"])
def test_resuming_a_finished_run_notices_a_flipped_bit(run, name):
    config = load_config("quickstart", [*SHORT, f"output={run}"])
    assert Experiment(config).run(resume=True).is_finished
    flip(run / name, 0.6)

    with pytest.raises(RaysimError, match=name.replace(".", r"\.")):
        Experiment(config).run(resume=True)


def test_a_run_of_before_is_resumed_and_verified_from_then_on(unfinished, made):
    (unfinished / "checksums.json").unlink()

    config = load_config("quickstart", [*SHORT, f"output={unfinished}"])
    digest = Experiment(config).run(resume=True).summary["digest"]

    assert digest == raysim.load_result(made).summary["digest"]
    assert raysim.load_result(unfinished).is_verified
    flip(unfinished / "rounds.jsonl", 0.1)
    with pytest.raises(CheckpointError, match=r"rounds\.jsonl"):
        _ = raysim.load_result(unfinished).records

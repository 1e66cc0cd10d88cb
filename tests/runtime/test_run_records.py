"""What a run writes into its directory: records, artifacts, and files that are whole or absent."""

from __future__ import annotations

import json

import numpy as np
import pytest

from raysim.errors import CheckpointError
from raysim.runs.folder import RunFolder, records_digest


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    opened = RunFolder(tmp_path / "run")
    opened.open(force=False)
    return opened


def test_records_come_back_in_order(folder):
    for r in range(4):
        folder.append({"round": r, "note": "é\u2028"})

    assert [record["round"] for record in folder.records()] == [0, 1, 2, 3]
    assert [record["round"] for record in folder.records(2)] == [0, 1]
    assert folder.records()[0]["note"] == "é\u2028"


def test_no_rounds_are_no_records(folder):

    assert folder.records() == []


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_records_beyond_the_last_commit_are_dropped(folder, count):
    for r in range(3):
        folder.append({"round": r})

    folder.keep_records(count)
    folder.append({"round": "next"})

    assert [record["round"] for record in folder.records()] == [*range(min(count, 3)), "next"]


def test_half_a_line_after_the_last_commit_is_dropped(folder):
    folder.append({"round": 0})
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1, "acc')

    folder.keep_records(1)

    assert folder.records() == [{"round": 0}]


def test_half_a_line_among_the_kept_ones_is_an_error_that_names_the_file(folder):
    (folder.path / "rounds.jsonl").write_text('{"round": 0}\n{"rou\n')

    with pytest.raises(CheckpointError, match=r"rounds\.jsonl"):
        folder.records()


def test_an_artifact_is_a_plain_array(folder):
    folder.artifact("similarity", np.eye(3))
    folder.artifact("similarity", 2 * np.eye(3))

    kept = list((folder.path / "artifacts").iterdir())

    assert [path.name for path in kept] == ["similarity.npy"]
    assert np.array_equal(np.load(kept[0], allow_pickle=False), 2 * np.eye(3))


def test_the_digest_of_records_leaves_times_out():
    records = [
        {"round": 1, "loss": 0.5, "seconds": 1.0},
        {"round": 2, "seconds": 2.0, "restarts": 1},
    ]
    slower = [{"seconds": 9.0, "loss": 0.5, "round": 1}, {"round": 2}]

    assert records_digest(records) == records_digest(slower)


@pytest.mark.parametrize(
    "other", [[{"round": 1, "loss": 0.25}], [{"round": 1}], [{"round": 1, "loss": 0.5}] * 2, []]
)
def test_the_digest_of_records_sees_everything_else(other):
    assert records_digest(other) != records_digest([{"round": 1, "loss": 0.5}])


def test_the_files_are_readable_without_raysim(folder):
    folder.write("result.json", {"accuracy": 1})
    folder.append({"round": 1})

    assert json.loads((folder.path / "result.json").read_text()) == {"accuracy": 1}
    assert (folder.path / "rounds.jsonl").read_text() == '{"round": 1}\n'
    assert folder.checkpoint == str(folder.path / "checkpoint")

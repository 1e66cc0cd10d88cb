"""What a run writes into its directory: records, artifacts, and files that are whole or absent."""

from __future__ import annotations

import json

import numpy as np
import pytest

from raysim.errors import CheckpointError
from raysim.runs.folder import RunFolder
from raysim.runs.record import (
    RoundRecord,
    format_records,
    newest,
    newest_known,
    parse_records,
    records_digest,
)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    opened = RunFolder(tmp_path / "run")
    opened.open(force=False)
    return opened


def test_records_come_back_in_order(folder):
    for r in range(4):
        folder.append(RoundRecord.from_json({"round": r, "note": "é\u2028"}))

    assert [record.round for record in folder.records()] == [0, 1, 2, 3]
    assert [record.round for record in folder.records(2)] == [0, 1]
    assert folder.records()[0].get("note") == "é\u2028"


def test_no_rounds_are_no_records(folder):

    assert folder.records() == []


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_records_beyond_the_last_commit_are_dropped(folder, count):
    for r in range(3):
        folder.append(RoundRecord.from_json({"round": r}))

    folder.keep_records(count)
    folder.append(RoundRecord(round=99))

    assert [record.round for record in folder.records()] == [*range(min(count, 3)), 99]


def test_half_a_line_after_the_last_commit_is_dropped(folder):
    folder.append(RoundRecord.from_json({"round": 0}))
    with (folder.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 1, "acc')

    folder.keep_records(1)

    assert [record.to_json() for record in folder.records()] == [{"round": 0}]


def test_half_a_line_among_the_kept_ones_is_an_error_that_names_the_file(folder):
    (folder.path / "rounds.jsonl").write_text('{"round": 0}\n{"rou\n')

    with pytest.raises(CheckpointError, match=r"rounds\.jsonl"):
        folder.records()


def test_an_artifact_is_a_plain_array(folder):
    folder.artifact("similarity", np.eye(3))
    folder.write_artifacts()
    folder.artifact("similarity", 2 * np.eye(3))
    folder.append(RoundRecord(round=1))

    kept = list((folder.path / "artifacts").iterdir())

    assert [path.name for path in kept] == ["similarity.npy"]
    assert np.array_equal(np.load(kept[0], allow_pickle=False), 2 * np.eye(3))


def test_the_digest_of_records_leaves_times_out():
    records = [
        {"round": 1, "loss": 0.5, "seconds": 1.0},
        {"round": 2, "seconds": 2.0, "restarts": 1},
    ]
    slower = [{"seconds": 9.0, "loss": 0.5, "round": 1}, {"round": 2}]

    assert digest(records) == digest(slower)


@pytest.mark.parametrize(
    "other", [[{"round": 1, "loss": 0.25}], [{"round": 1}], [{"round": 1, "loss": 0.5}] * 2, []]
)
def test_the_digest_of_records_sees_everything_else(other):
    assert digest(other) != digest([{"round": 1, "loss": 0.5}])


def digest(records):
    return records_digest([RoundRecord.from_json(record) for record in records])


def test_a_record_is_written_as_it_was_made():
    line = (
        '{"round": 2, "stage": "train", "mine": {"a": [1]}, "bytes": {"up": {"model": 3}}, '
        '"loss": null, "groups": "unknown", "accuracy": {"std": 0.0, "mean": 0.5}, "seconds": 1}\n'
    )

    (record,), damaged = parse_records(line)

    assert format_records([record]) == line
    assert damaged == {}


def test_a_field_holds_what_fits_it_and_nothing_else():
    record = RoundRecord.from_json(
        {"stage": "train", "round": True, "loss": None, "groups": "unknown", "mine": 7, "rank": 3}
    )

    assert (record.stage, record.round, record.groups, record.rank) == ("train", 0, None, 3)
    assert record.has("loss")
    assert record.loss is None
    assert not record.has("accuracy")
    assert (record.get("groups"), record.get("mine"), record.get("ari")) == ("unknown", 7, None)


def test_bytes_are_summed_over_the_messages_of_a_direction():
    record = RoundRecord(sent={"up": {"model": 10, "spectra": 1}, "down": {}})

    assert (record.bytes("up"), record.bytes("down")) == (11, 0)
    assert record.to_json()["bytes"]["up"] == {"model": 10, "spectra": 1}
    assert RoundRecord().bytes("up") == 0


def test_the_newest_value_may_be_null_and_the_newest_known_one_is_not():
    records = [
        RoundRecord.from_json(plain) for plain in ({"ari": 0.5}, {"ari": None}, {"loss": 1.0})
    ]

    assert newest(records, "ari") is None
    assert newest_known(records, "ari") == 0.5
    assert newest(records, "nmi") is None


def test_damaged_lines_are_named_and_a_torn_one_is_left_out():
    records, damaged = parse_records('{"round": 1}\n{"rou\n[1]\n{"round": 4}\n{"round": 5}')

    assert [record.round for record in records] == [1, 4]
    assert list(damaged) == [2, 3]


def test_the_files_are_readable_without_raysim(folder):
    folder.write("result.json", {"accuracy": 1})
    folder.append(RoundRecord.from_json({"round": 1}))

    assert json.loads((folder.path / "result.json").read_text()) == {"accuracy": 1}
    assert (folder.path / "rounds.jsonl").read_text() == '{"round": 1}\n'
    assert folder.checkpoint == str(folder.path / "checkpoint")

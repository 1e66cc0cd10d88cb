"""``events.jsonl`` and ``run.log``: one line per fact, with run, stage, round and client."""

from __future__ import annotations

import json
import logging
import uuid
from datetime import datetime

import pytest

from raysim.errors import ClientFailed, Interrupted
from raysim.protocols import Where
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event
from raysim.runtime.events import keep_logs

RUN = {"name": "x", "method": "fb_nll", "seed": 7}
log = logging.getLogger("raysim.tests")


@pytest.fixture
def folder(tmp_path):
    """An open run directory; raysim logs at INFO."""
    opened = RunFolder(tmp_path / "run")
    opened.open(force=False)
    root = logging.getLogger("raysim")
    before = root.level
    root.setLevel(logging.INFO)
    yield opened
    root.setLevel(before)
    opened.close()


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder.path / "events.jsonl").read_text().splitlines()]


def test_a_log_call_becomes_a_line_with_its_place_and_its_facts(folder):
    where: list[Where | None] = [None]
    with keep_logs(folder, run=RUN, where=lambda: where[0]):
        log.info("hello %s", "you")
        where[0] = Where("train", 2, 20)
        facts = {"event": "lost", "actor": "actor 1", "node": "10.0.0.1", "client": 4}
        log.warning("actor %d was lost", 1, extra={"facts": facts})

    first, second, end = lines(folder)
    assert (first["message"], first["level"], first["run"]) == ("hello you", "INFO", RUN)
    assert "stage" not in first
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second.items() >= {**facts, "stage": "train", "round": 3, "level": "WARNING"}.items()
    assert (end["event"], end["outcome"]) == ("end", "done")
    assert "actor 1 was lost" in (folder.path / "run.log").read_text()


def test_the_coordinators_events_are_lines(folder):
    record = {
        "stage": "train",
        "round": 2,
        "seconds": 0.5,
        "accuracy": {"mean": 0.75, "std": 0.1},
        "bytes": {"up": {"model": 10, "spectrum": 5}, "down": {"model": 7}},
    }
    with keep_logs(folder, run=RUN, where=lambda: None) as listen:
        listen(Event("start", rounds=4, round=1))
        listen(Event("round", "train", 2, 3, RoundRecord.from_json(record)))
        listen(Event("commit", round=2))

    start, done, commit, _ = lines(folder)
    assert start.items() >= {"event": "start", "finished": 1, "rounds": 4}.items()
    expected = {"event": "round", "stage": "train", "round": 2, "seconds": 0.5, "accuracy": 0.75}
    assert done.items() >= {**expected, "up_bytes": 15, "down_bytes": 7}.items()
    assert commit.items() >= {"event": "commit", "finished": 2}.items()


def test_a_failed_client_leaves_its_traceback_in_the_log_and_its_name_in_the_events(folder):
    trace = 'Traceback (most recent call last):\n  File "task.py"\nValueError: bad'
    wrong = ClientFailed(
        5, "train_task", "ValueError: bad", Where("train", 1, 9), trace, "10.0.0.2"
    )

    with (
        pytest.raises(ClientFailed),
        keep_logs(folder, run=RUN, where=lambda: Where("train", 1, 9)),
    ):
        raise wrong

    text = (folder.path / "run.log").read_text()
    assert f"run ended: {wrong}" in text
    assert trace in text
    (end,) = lines(folder)
    expected = {"event": "end", "outcome": "failed", "error": "ClientFailed", "level": "ERROR"}
    assert end.items() >= {**expected, "client": 5, "round": 2, "node": "10.0.0.2"}.items()


def test_a_stopped_run_says_so_and_a_resumed_one_goes_on_in_the_same_file(folder):
    with pytest.raises(Interrupted), keep_logs(folder, run=RUN, where=lambda: None):
        raise Interrupted("asked to")
    with keep_logs(folder, run=RUN, where=lambda: None):
        pass

    assert [line["outcome"] for line in lines(folder)] == ["stopped", "done"]


def test_a_line_can_be_written_whatever_the_facts_are(folder):
    import numpy as np

    with keep_logs(folder, run=RUN, where=lambda: None):
        log.info("100 % done\nreally", extra={"facts": {"value": np.float32(1.5), "what": {1, 2}}})

    assert lines(folder)[0]["message"] == "100 % done\nreally"


def test_nothing_is_written_after_the_run(folder):
    with keep_logs(folder, run=RUN, where=lambda: None):
        pass
    log.info("later")

    assert "later" not in (folder.path / "run.log").read_text()
    assert len(lines(folder)) == 1


def test_at_a_url_the_lines_are_there_at_the_end_and_a_resumed_run_adds_to_them():
    place = f"memory://events-{uuid.uuid4().hex}/run"
    for name in ("first", "second"):
        opened = RunFolder(place)
        opened.open(force=False)
        with keep_logs(opened, run=RUN, where=lambda: None) as listen:
            log.warning(name)
            listen(Event("commit", round=1))
        opened.close()

    found = opened.storage.read("events.jsonl").decode().splitlines()
    kinds = [json.loads(line).get("event", json.loads(line)["message"]) for line in found]
    assert kinds == ["first", "commit", "end", "second", "commit", "end"]
    text = opened.storage.read("run.log").decode()
    assert text.index("first") < text.index("second")


def test_a_full_disk_costs_lines_and_not_the_run(folder, capsys):
    (folder.path / "events.jsonl").symlink_to("/dev/full")

    with keep_logs(folder, run=RUN, where=lambda: None) as listen:
        listen(Event("start", rounds=4))
        log.warning("hello")

    assert "hello" in (folder.path / "run.log").read_text()
    assert "Logging error" not in capsys.readouterr().err

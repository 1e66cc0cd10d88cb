"""Run directories and commits behind a URL: locks, damage, no pickles."""

from __future__ import annotations

import io
import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fsspec
import numpy as np
import pytest

from raysim.errors import CheckpointError, OutputError
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.storage import locks as remote_storage
from raysim.storage.checkpoint import read_manifest, read_object, write_manifest, write_object
from raysim.storage.objects import open_storage


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/run"


def model(value: float) -> dict[str, np.ndarray]:
    return {"trainable": np.full(50, value, np.float32)}


def commit(folder: str, round_id: int) -> str:
    digest = write_object(folder, model(round_id))
    write_manifest(folder, {"models": {"group/0": digest}, "memory": {}, "finished": round_id})
    return digest


def age(url: str, seconds: float) -> None:
    """Make an object of the storage older."""
    files, path = fsspec.core.url_to_fs(url)
    files.store[path].modified = datetime.now(tz=UTC) - timedelta(seconds=seconds)


# ---- commits -------------------------------------------------------------------------------


def test_the_two_newest_commits_stay(url):
    digests = [commit(url, round_id) for round_id in (1, 2, 3, 4)]

    assert read_manifest(url)["finished"] == 4
    assert open_storage(url).names("objects") == sorted(f"{d}.npz" for d in digests[2:])
    assert np.array_equal(read_object(url, digests[3])["trainable"], model(4)["trainable"])


@pytest.mark.parametrize("what", ["manifest.json", "object", "gone"])
def test_a_damaged_commit_falls_back_and_is_made_again(url, what, caplog):
    storage = open_storage(url)
    commit(url, 1)
    digest = commit(url, 2)
    name = what if what == "manifest.json" else f"objects/{digest}.npz"
    content = storage.read(name)
    storage.write(name, content[: len(content) // 2])
    if what == "gone":
        storage.remove(name)

    assert read_manifest(url)["finished"] == 1
    assert "is damaged" in caplog.text
    assert commit(url, 2) == digest
    assert read_manifest(url)["finished"] == 2


def test_both_commits_damaged_is_an_error(url):
    commit(url, 1)
    commit(url, 2)
    for name in ("manifest.json", "manifest-previous.json"):
        open_storage(url).write(name, b"\x80no")

    with pytest.raises(CheckpointError, match="--force"):
        read_manifest(url)


def test_no_commit_is_none(url):
    assert read_manifest(url) is None


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_a_pickle_is_refused_unopened(url, tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([Bomb(tmp_path / "opened")], dtype=object))
    open_storage(url).write("objects/abc.npz", buffer.getvalue())

    with pytest.raises(CheckpointError, match=r"abc\.npz"):
        read_object(url, "abc")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("digest", ["../../secret", "a/b", "", "a.b"])
def test_a_manifest_cannot_point_outside_its_folder(url, tmp_path, digest):
    for folder in (url, tmp_path / "run"):
        with pytest.raises(CheckpointError, match="is not the name of a checkpoint object"):
            read_object(folder, digest)
        commit(folder, 1)
        write_manifest(folder, {"models": {"group/0": digest}, "memory": {}})

        assert read_manifest(folder)["finished"] == 1


# ---- the run directory ---------------------------------------------------------------------


def started(folder: RunFolder, *, finished: bool = False) -> RunFolder:
    folder.check(resume=False, force=False)
    folder.open(force=False)
    folder.write("config.yaml", "name: one\nseed: 3\n")
    folder.append(RoundRecord.from_json({"round": 1}))
    folder.artifact("similarity", np.eye(2))
    folder.append(RoundRecord.from_json({"round": 2}))
    commit(folder.checkpoint, 1)
    if finished:
        folder.write("result.json", {"accuracy": 1})
    folder.close()
    return folder


def test_a_run_leaves_plain_files(url):
    folder = started(RunFolder(url), finished=True)

    assert folder.path == url
    assert folder.checkpoint == f"{url}/checkpoint"
    assert folder.storage.names() == [
        "artifacts",
        "checkpoint",
        "checksums.json",
        "config.yaml",
        "result.json",
        "rounds.jsonl",
    ]
    again = RunFolder(url)
    assert again.saved_config() == {"name": "one", "seed": 3}
    assert again.read("result.json") == {"accuracy": 1}
    array = np.load(again.storage.open("artifacts/similarity.npy"), allow_pickle=False)
    assert np.array_equal(array, np.eye(2))


def test_records_survive_a_crash_and_those_past_the_commit_are_dropped(url):
    started(RunFolder(url))
    again = RunFolder(url)
    again.open(force=False)

    again.keep_records(1)
    again.append(RoundRecord(round=99))

    assert [record.round for record in RunFolder(url).records()] == [1, 99]


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_that_is_there_is_refused_or_taken_as_asked(url, finished):
    started(RunFolder(url), finished=finished)

    with pytest.raises(OutputError, match="holds a finished" if finished else "--resume"):
        RunFolder(url).check(resume=False, force=False)
    RunFolder(url).check(resume=True, force=False)
    forced = RunFolder(url)
    forced.check(resume=False, force=True)
    forced.open(force=True)
    forced.close()

    assert forced.storage.names() == []


def test_a_place_of_something_else_is_refused(url):
    open_storage(url).write("thesis.tex", b"")

    with pytest.raises(OutputError, match="not a run directory"):
        RunFolder(url).check(resume=False, force=True)


def test_a_torn_config_is_an_error_that_names_it(url):
    started(RunFolder(url)).storage.write("config.yaml", b"a: [1")

    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        RunFolder(url).saved_config()


# ---- the lock ------------------------------------------------------------------------------


def test_a_run_in_use_is_refused_with_the_time_to_wait(url):
    first = RunFolder(url)
    first.open(force=False)

    with pytest.raises(OutputError, match=r"last seen 0 s ago.*try again in 60 s"):
        RunFolder(url).open(force=True)
    assert len(first.storage.names(".lock")) == 1  # who was refused leaves nothing
    first.close()

    RunFolder(url).open(force=False)


def test_the_lock_of_a_dead_process_is_taken_over_when_it_is_old(url, caplog):
    storage = open_storage(url)
    storage.write(".lock/dead", b"1\n")
    age(f"{url}/.lock/dead", remote_storage.STALE_S - 20)
    with pytest.raises(OutputError, match="last seen 40 s ago"):
        RunFolder(url).open(force=False)
    age(f"{url}/.lock/dead", remote_storage.STALE_S + 1)

    folder = RunFolder(url)
    folder.open(force=False)

    assert "no sign of life" in caplog.text
    assert "dead" not in storage.names(".lock")
    folder.close()
    assert storage.names() == []


def test_a_living_process_gives_signs_of_life(url, monkeypatch):
    monkeypatch.setattr(remote_storage, "REFRESH_S", 0.01)
    folder = RunFolder(url)
    folder.open(force=False)
    (name,) = folder.storage.names(".lock")
    age(f"{url}/.lock/{name}", 1000)

    deadline = time.monotonic() + 30
    while folder.storage.modified(f".lock/{name}") < datetime.now(tz=UTC) - timedelta(seconds=500):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    folder.close()

    assert folder.storage.names() == []


def test_a_process_that_was_overtaken_writes_no_more(url, monkeypatch):
    monkeypatch.setattr(remote_storage, "REFRESH_S", 3600.0)  # asleep
    slow = RunFolder(url)
    slow.open(force=False)
    slow.append(RoundRecord.from_json({"round": 1}))
    (name,) = slow.storage.names(".lock")
    age(f"{url}/.lock/{name}", 1000)
    RunFolder(url).open(force=False)
    monkeypatch.setattr(remote_storage, "STALE_S", -1.0)  # long asleep

    with pytest.raises(OutputError, match="taken over by another process"):
        slow.append(RoundRecord.from_json({"round": 2}))

    assert [record.round for record in slow.records()] == [1]
    slow.close()
    assert len(slow.storage.names(".lock")) == 1


def test_a_lock_that_was_taken_over_during_a_sign_does_not_come_back(url, monkeypatch):
    monkeypatch.setattr(remote_storage, "REFRESH_S", 3600.0)  # signs are given by check() only
    slow, quick = RunFolder(url), RunFolder(url)
    slow.open(force=False)
    real = slow.storage.write

    def stalled(name: str, content: bytes) -> None:
        if name.startswith(".lock/"):
            quick.open(force=False)
        real(name, content)

    monkeypatch.setattr(slow.storage, "write", stalled)
    monkeypatch.setattr(remote_storage, "STALE_S", -1.0)  # every sign comes too late

    with pytest.raises(OutputError, match="taken over by another process"):
        slow.append(RoundRecord.from_json({"round": 1}))

    assert len(slow.storage.names(".lock")) == 1
    quick.append(RoundRecord.from_json({"round": 1}))  # the other one is not disturbed
    slow.close()
    quick.close()


def test_the_lock_says_nothing_about_the_machine(url):
    folder = RunFolder(url)
    folder.open(force=False)
    (name,) = folder.storage.names(".lock")

    assert int(json.loads(folder.storage.read(f".lock/{name}"))) > 0
    folder.close()

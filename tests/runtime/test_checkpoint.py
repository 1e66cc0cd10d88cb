"""Commits: content-addressed objects and one rename."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from raysim.errors import CheckpointError
from raysim.storage import objects as storage
from raysim.storage.checkpoint import (
    objects_of,
    read_manifest,
    read_object,
    tree_digest,
    write_manifest,
    write_object,
)


def model(value: float) -> dict[str, np.ndarray]:
    return {"trainable": np.full(50, value, np.float32), "buffers": np.zeros(0, np.float32)}


def commit(folder: Path, round_id: int) -> str:
    """A commit like the coordinator's, of one model; returns the model's digest."""
    digest = write_object(folder, model(round_id))
    write_manifest(folder, {"models": {"group/0": digest}, "memory": {}, "finished": round_id})
    return digest


def stored(folder: Path, digest: str) -> Path:
    return folder / "objects" / f"{digest}.npz"


@pytest.mark.parametrize(
    "other",
    [
        {"b": np.arange(6.0)},
        {"a": np.arange(6)},
        {"a": np.arange(6.0).reshape(2, 3)},
        {"a": np.arange(6.0, dtype=np.float32)},
        {"a": np.nextafter(np.arange(6.0), 7.0)},
        {"a": np.arange(6.0), "b": np.zeros(0)},
        {"a": np.arange(6.0).astype(">f8")},
    ],
)
def test_the_digest_sees_names_types_shapes_and_bytes(other):
    assert tree_digest(other) != tree_digest({"a": np.arange(6.0)})


def test_the_digest_tells_a_number_from_a_list_of_one():
    assert tree_digest({"a": np.array(5.0)}) != tree_digest({"a": np.array([5.0])})


def test_the_digest_does_not_see_order_or_memory_layout():
    grid = np.arange(12.0).reshape(3, 4)
    one = {"a": grid, "b": np.ones(2)}
    two = {"b": np.ones(4)[::2], "a": np.asfortranarray(grid)}

    assert tree_digest(one) == tree_digest(two)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"labels": np.arange(5), "flags": np.array([True, False])},
        {"number": np.array(3.5), "empty": np.zeros((0, 4), np.float32)},
        {"7/labels": np.arange(3), "7/deep/name": np.ones(2)},
        {"file": np.arange(3), "allow_pickle": np.ones(1)},
    ],
)
def test_a_tree_comes_back_as_it_was(tmp_path, tree):
    again = read_object(tmp_path, write_object(tmp_path, tree))

    assert again.keys() == tree.keys()
    for name, array in tree.items():
        assert (again[name].dtype, again[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(again[name], array)


def test_the_same_tree_is_stored_once(tmp_path):
    digest = write_object(tmp_path, model(1))
    before = stored(tmp_path, digest).stat()

    assert write_object(tmp_path, model(1)) == digest
    after = stored(tmp_path, digest).stat()

    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_pickle_is_refused_unopened(tmp_path, is_bare):
    (tmp_path / "objects").mkdir()
    trace = tmp_path / "opened"
    bomb = np.array([Bomb(trace)], dtype=object)
    np.savez(stored(tmp_path, "abc"), x=bomb)
    if is_bare:
        stored(tmp_path, "abc").write_bytes(pickle.dumps(bomb))

    with pytest.raises(CheckpointError, match=r"abc\.npz"):
        read_object(tmp_path, "abc")
    assert not trace.exists()


def test_an_array_that_needs_a_pickle_is_not_written(tmp_path):
    with pytest.raises((CheckpointError, ValueError)):
        write_object(tmp_path, {"x": np.array([{}], dtype=object)})


def test_no_commit_is_none(tmp_path):
    assert read_manifest(tmp_path / "nowhere") is None


def test_the_newest_commit_is_read(tmp_path):
    for round_id in (1, 2, 3):
        digest = commit(tmp_path, round_id)

    manifest = read_manifest(tmp_path)

    assert manifest == {"models": {"group/0": digest}, "memory": {}, "finished": 3}


def test_a_commit_names_the_objects_of_models_and_memory():
    manifest = {"models": {"group/0": "a", "group/1": "a"}, "memory": {"b": [0, 1], "c": [2]}}

    assert objects_of(manifest) == {"a", "b", "c"}
    assert objects_of({}) == set()


def test_objects_of_the_two_newest_commits_stay_and_older_ones_go(tmp_path):
    digests = [commit(tmp_path, round_id) for round_id in (1, 2, 3, 4)]

    left = {path.stem for path in (tmp_path / "objects").iterdir()}

    assert left == set(digests[2:])


def test_what_a_crashed_write_left_behind_goes_with_the_next_commits(tmp_path, monkeypatch):
    commit(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", crash)
        patch.setattr(Path, "unlink", crash)  # who is killed tidies up no more
        with pytest.raises(KeyboardInterrupt):
            write_object(tmp_path, model(2))
    assert any(path.suffix == ".part" for path in (tmp_path / "objects").iterdir())

    digests = {commit(tmp_path, 2), commit(tmp_path, 3)}

    assert {path.name for path in (tmp_path / "objects").iterdir()} == {f"{d}.npz" for d in digests}


def crash(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_crash_between_object_and_manifest_leaves_the_old_commit(tmp_path):
    commit(tmp_path, 1)
    write_object(tmp_path, model(2))

    assert read_manifest(tmp_path)["finished"] == 1


@pytest.mark.parametrize("calls_before_the_crash", [0, 1, 2])
def test_a_crash_inside_a_commit_leaves_the_old_commit(
    tmp_path, monkeypatch, calls_before_the_crash
):
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    left = calls_before_the_crash
    real = storage.os.fsync

    def fsync(number: int) -> None:
        nonlocal left
        left -= 1
        crash() if left < 0 else real(number)

    digest = write_object(tmp_path, model(3))
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "fsync", fsync)
        with pytest.raises(KeyboardInterrupt):
            write_manifest(tmp_path, {"models": {"group/0": digest}, "memory": {}, "finished": 3})

    assert read_manifest(tmp_path)["finished"] == 2

"""Damaged commits: found, reported, and a way back that survives the next commit."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from raysim.errors import CheckpointError
from raysim.storage.checkpoint import read_manifest, read_object, write_manifest, write_object
from raysim.storage.objects import LocalStorage


def model(value: float) -> dict[str, np.ndarray]:
    return {"trainable": np.full(50, value, np.float32)}


def commit(folder: Path, round_id: int) -> str:
    """A commit like the coordinator's, of one model; returns the model's digest."""
    digest = write_object(folder, model(round_id))
    write_manifest(folder, {"models": {"group/0": digest}, "memory": {}, "finished": round_id})
    return digest


def stored(folder: Path, digest: str) -> Path:
    return folder / "objects" / f"{digest}.npz"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x80\x81 no text")


def rewrite(path: Path) -> None:
    """Change the manifest without its signature."""
    signed = json.loads(path.read_text())
    signed["manifest"]["finished"] = 99
    path.write_text(json.dumps(signed))


OBJECT_DAMAGE = [cut, flip, overwrite, Path.unlink]
MANIFEST_DAMAGE = [cut, overwrite, rewrite]


@pytest.mark.parametrize("damage", OBJECT_DAMAGE)
def test_a_damaged_object_is_refused_by_name(tmp_path, damage):
    digest = write_object(tmp_path, model(1))
    damage(stored(tmp_path, digest))

    with pytest.raises(CheckpointError, match=digest):
        read_object(tmp_path, digest)


@pytest.fixture(
    params=[*((d, True) for d in MANIFEST_DAMAGE), *((d, False) for d in OBJECT_DAMAGE)]
)
def damaged(tmp_path, request):
    """A folder whose newest commit, of round 2, is damaged in its manifest or its object."""
    damage, is_manifest = request.param
    commit(tmp_path, 1)
    digest = commit(tmp_path, 2)
    damage(tmp_path / "manifest.json" if is_manifest else stored(tmp_path, digest))
    return tmp_path


def test_damage_to_the_newest_commit_falls_back_with_a_warning(damaged, caplog):
    assert read_manifest(damaged)["finished"] == 1
    assert "is damaged" in caplog.text


def test_damage_to_the_commit_before_does_not_matter(tmp_path, caplog):
    commit(tmp_path, 1)
    commit(tmp_path, 2)
    overwrite(tmp_path / "manifest-previous.json")

    assert read_manifest(tmp_path)["finished"] == 2
    assert not caplog.text
    commit(tmp_path, 3)
    assert read_manifest(tmp_path)["finished"] == 3


def test_both_commits_damaged_is_an_error_with_advice(damaged):
    overwrite(damaged / "manifest-previous.json")

    with pytest.raises(CheckpointError, match="--force"):
        read_manifest(damaged)


def test_a_run_that_fell_back_commits_the_same_round_again(damaged):
    # The same round gives the same bits, hence the same digest as the damaged object.
    read_manifest(damaged)

    digest = commit(damaged, 2)

    assert read_manifest(damaged)["finished"] == 2
    assert np.array_equal(read_object(damaged, digest)["trainable"], model(2)["trainable"])


@pytest.mark.parametrize("next_round", [2, 3])
def test_a_run_that_fell_back_keeps_its_way_back(damaged, monkeypatch, next_round):
    # Round 3 comes next where the run resumes with another checkpoint.every.
    read_manifest(damaged)
    digest = write_object(damaged, model(next_round))
    manifest = {"models": {"group/0": digest}, "memory": {}, "finished": next_round}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash_on("manifest.json", Path.replace))
        with pytest.raises(KeyboardInterrupt):
            write_manifest(damaged, manifest)

    # The damaged commit of round 2 may have become whole again by writing its object anew.
    assert read_manifest(damaged)["finished"] in ((1, 2) if next_round == 2 else (1,))


def crash_on(name: str, real):
    def replace(path: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise KeyboardInterrupt
        return real(path, target)

    return replace


def unreadable_once(patch, ending: str) -> None:
    """Let the first file whose name ends so answer with an error, as a network drive may."""
    real, failed = LocalStorage.open, []

    def open_(storage: LocalStorage, name: str):
        if name.endswith(ending) and not failed:
            failed.append(name)
            raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")
        return real(storage, name)

    patch.setattr(LocalStorage, "open", open_)


@pytest.mark.parametrize("what", ["object", "manifest.json"])
def test_a_commit_that_cannot_be_read_for_a_moment_is_not_given_up(tmp_path, monkeypatch, what):
    commit(tmp_path, 1)
    digest = commit(tmp_path, 2)
    before = sorted(tmp_path.rglob("*"))
    unreadable_once(monkeypatch, f"{digest}.npz" if what == "object" else what)

    with pytest.raises(CheckpointError, match=r"timed out.*try --resume again") as wrong:
        read_manifest(tmp_path)

    assert "--force" not in str(wrong.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert read_manifest(tmp_path)["finished"] == 2


def test_reading_an_object_tells_damage_from_a_moment_without_network(tmp_path, monkeypatch):
    digest = write_object(tmp_path, model(1))
    unreadable_once(monkeypatch, ".npz")

    with pytest.raises(CheckpointError, match="cannot be read now"):
        read_object(tmp_path, digest)


def test_an_object_that_cannot_be_read_is_written_again(tmp_path, monkeypatch):
    digest = write_object(tmp_path, model(1))
    unreadable_once(monkeypatch, ".npz")

    assert write_object(tmp_path, model(1)) == digest
    assert np.array_equal(read_object(tmp_path, digest)["trainable"], model(1)["trainable"])

"""Run directories on their way home: whole or refused, and nothing but a run directory."""

from __future__ import annotations

import io
import json
import os
import tarfile

import numpy as np
import pytest

from raysim.errors import DataError, OutputError
from raysim.runs import transfer
from raysim.runs.transfer import (
    arrive,
    arriving,
    belongs,
    check_destination,
    copy,
    pack,
    receive,
    send,
    unpack,
)
from raysim.storage.checkpoint import read_manifest, write_manifest, write_object
from raysim.storage.objects import LocalStorage, open_storage

MOST = 10**7


@pytest.fixture
def run(tmp_path):
    """A run directory with everything in it, and some strangers."""
    files = {
        "config.yaml": b"name: x\n",
        "result.json": b"{}",
        "events.jsonl": b"{}\n" * 3,
        "artifacts/similarity.npy": os.urandom(50_000),
        "models/group-0.safetensors": os.urandom(3_000),
        "models/index.json": b"{}",
        "models/notes.txt": b"private",
        ".lock": b"",
        "notes.txt": b"private",
        "artifacts/.secret.npy": b"private",
    }
    for name, content in files.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    commit(tmp_path / "run", 1)
    commit(tmp_path / "run", 2)
    return tmp_path / "run"


def commit(run, finished: int) -> None:
    """A commit of one model, as the coordinator makes it, after a line in the records."""
    with (run / "rounds.jsonl").open("a") as file:
        file.write("{}\n")
    weights = np.random.default_rng(finished).normal(size=4000)
    digest = write_object(run / "checkpoint", {"w": weights})
    write_manifest(run / "checkpoint", {"models": {"global": digest}, "finished": finished})


def contents(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def sent(run, *, models=False) -> str:
    archive, out = io.BytesIO(), io.StringIO()
    pack(open_storage(run), archive, models=models, most_bytes=MOST)
    send(archive, out)
    return out.getvalue()


def archive_of(*entries: tarfile.TarInfo, data: bytes = b"x") -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for entry in entries:
            entry.size = len(data) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(data))
    made.seek(0)
    return made


@pytest.mark.parametrize("models", [False, True])
@pytest.mark.parametrize("piece", [7, 20_000])
def test_what_was_sent_arrives_whatever_the_log_is_cut_into(run, tmp_path, models, piece):
    text = "a warning of somebody\n" + sent(run, models=models) + "and one more\n"
    chunks = [text[i : i + piece] for i in range(0, len(text), piece)]
    archive, home = io.BytesIO(), tmp_path / "home"

    receive(chunks, archive)
    unpack(archive, home, models=models)

    before = contents(run)
    assert contents(home) == {n: c for n, c in before.items() if belongs(n, models=models)}
    assert ("checkpoint/manifest.json" in contents(home)) is models
    assert ("models/group-0.safetensors" in contents(home)) is models
    assert "models/notes.txt" not in contents(home)
    assert "notes.txt" not in contents(home)


def test_no_line_is_longer_than_ray_hands_on_at_once(run):
    assert max(map(len, sent(run, models=True).splitlines())) < 20_000


def test_copying_gives_what_sending_gives(run, tmp_path):
    assert copy(open_storage(run), tmp_path / "home", models=True)

    before = contents(run)
    assert contents(tmp_path / "home") == {
        n: c for n, c in before.items() if belongs(n, models=True)
    }
    assert not copy(open_storage(tmp_path / "nothing"), tmp_path / "other", models=True)


def commit_while_read(monkeypatch, run, most: int) -> None:
    """Let the run go on by two rounds whenever its records are read, ``most`` times."""
    real, done = LocalStorage.open, []

    def open_(storage, name):
        if name == "rounds.jsonl" and len(done) < most:
            done.append(name)
            for more in (1, 2):
                commit(run, 2 * len(done) + more)
        return real(storage, name)

    monkeypatch.setattr(LocalStorage, "open", open_)


@pytest.mark.parametrize("way", ["pack", "copy"])
def test_a_living_run_arrives_with_a_whole_commit(run, tmp_path, monkeypatch, way):
    commit_while_read(monkeypatch, run, 2)
    home = tmp_path / "home"

    if way == "copy":
        assert copy(open_storage(run), home, models=True)
    else:
        archive = io.BytesIO()
        pack(open_storage(run), archive, models=True, most_bytes=MOST)
        archive.seek(0)
        unpack(archive, home, models=True)

    finished = read_manifest(home / "checkpoint")["finished"]
    assert finished == 6
    assert len((home / "rounds.jsonl").read_text().splitlines()) >= finished
    assert len(list((home / "checkpoint/objects").iterdir())) == 2
    assert not (home / "checkpoint/manifest-damaged.json").exists()


def test_a_run_that_is_always_faster_is_an_error(run, tmp_path, monkeypatch):
    commit_while_read(monkeypatch, run, 100)

    with pytest.raises(DataError, match="leave out --models"):
        copy(open_storage(run), tmp_path / "home", models=True)


def flip(text: str) -> str:
    """Change one letter of the last part."""
    at = text.rindex(transfer.PART) + len(transfer.PART)
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda text: text[: len(text) // 2],
        lambda text: text.removesuffix(transfer.END + "\n"),
        lambda text: "\n".join(text.split("\n")[:2] + text.split("\n")[3:]),  # a part is missing
        lambda text: text.replace(transfer.END, text.split("\n")[1] + "\n" + transfer.END),
        lambda text: "",
    ],
)
def test_what_is_not_whole_is_refused(run, damage):
    with pytest.raises(DataError):
        receive([damage(sent(run))], io.BytesIO())


def test_the_clusters_own_words_arrive():
    said = transfer.WRONG + json.dumps("no run directory at /x") + "\n"

    with pytest.raises(DataError, match="no run directory at /x"):
        receive([said], io.BytesIO())


def test_too_much_is_refused_before_it_is_sent(run):
    with pytest.raises(DataError, match="copy it with rsync"):
        pack(open_storage(run), io.BytesIO(), models=True, most_bytes=1000)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../config.yaml",
        "artifacts/../../x.npy",
        "artifacts/../config.yaml",
        "notes.txt",
        "config.yaml/x",
        "./config.yaml",
        "artifacts/x.pkl",
        "artifacts/a/b.npy",
        "artifacts/.hidden.npy",
        "checkpoint/objects/deep/x.npz",
        "config.yaml\n",
        "",
    ],
)
def test_a_name_that_no_run_directory_has_is_refused(tmp_path, name):
    home = tmp_path / "in" / "home"
    home.mkdir(parents=True)

    with pytest.raises(DataError, match="no run directory has"):
        unpack(archive_of(tarfile.TarInfo(name)), home, models=True)

    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
)
def test_only_plain_files_are_unpacked(tmp_path, kind):
    entry = tarfile.TarInfo("config.yaml")
    entry.type, entry.linkname = kind, "/etc/passwd"

    with pytest.raises(DataError, match="no run directory has"):
        unpack(archive_of(entry), tmp_path, models=True)

    assert list(tmp_path.iterdir()) == []


def test_a_name_twice_a_bomb_and_garbage_are_refused(tmp_path):
    twice = archive_of(tarfile.TarInfo("config.yaml"), tarfile.TarInfo("config.yaml"))
    bomb = archive_of(tarfile.TarInfo("config.yaml"), data=bytes(10**6))

    with pytest.raises(DataError):
        unpack(twice, tmp_path / "a", models=True)
    with pytest.raises(DataError, match="unpacks to more than"):
        unpack(bomb, tmp_path / "b", models=True, most_bytes=10**5)
    with pytest.raises(DataError, match="cannot be unpacked"):
        unpack(io.BytesIO(b"not an archive"), tmp_path / "c", models=True)


def test_models_come_only_when_asked_for(tmp_path):
    archive = archive_of(tarfile.TarInfo("checkpoint/manifest.json"))

    with pytest.raises(DataError):
        unpack(archive, tmp_path, models=False)


# ---- arriving --------------------------------------------------------------------------------


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    def bring(wrong):
        with arriving(tmp_path) as part:
            (part / "config.yaml").write_text("name: x\n")
            if wrong:
                raise DataError("broken")
            arrive(part, tmp_path / "a" / "home", force=False)

    with pytest.raises(DataError):
        bring(wrong=True)
    assert list(tmp_path.iterdir()) == []
    bring(wrong=False)
    assert contents(tmp_path) == {"a/home/config.yaml": b"name: x\n"}


def test_only_a_run_directory_is_replaced_and_only_when_asked(tmp_path, run):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")

    with pytest.raises(OutputError, match="use --force"):
        check_destination(run, force=False)
    with pytest.raises(OutputError, match="not a run directory"):
        check_destination(tmp_path / "other", force=True)
    check_destination(tmp_path / "new", force=False)
    with arriving(tmp_path) as part:
        (part / "config.yaml").write_text("name: new\n")
        arrive(part, run, force=True)

    assert contents(run) == {"config.yaml": b"name: new\n"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "run"]

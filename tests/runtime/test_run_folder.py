"""The run directory: what it refuses and what it replaces."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from raysim.errors import OutputError, OutputLost
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord

HOLD = """
import sys
from pathlib import Path
from raysim.runs.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.open(force=False)
print("open", flush=True)
sys.stdin.read()
folder.close()
"""


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "one")


def started(folder: RunFolder, *, finished: bool = False) -> RunFolder:
    """What a run that began here leaves behind."""
    folder.open(force=False)
    folder.write("config.yaml", "name: one\n")
    folder.append(RoundRecord.from_json({"stage": "train", "round": 1}))
    folder.artifact("similarity", np.eye(2))
    if finished:
        folder.write("result.json", {"accuracy": 1})
    folder.close()
    return folder


def refusal(folder: RunFolder, *, resume: bool = False, force: bool = False) -> str:
    with pytest.raises(OutputError) as caught:
        folder.check(resume=resume, force=force)
    return str(caught.value)


def test_a_new_folder_is_accepted_and_left_alone(folder):
    folder.check(resume=False, force=False)

    assert not folder.path.exists()


def test_an_empty_folder_is_accepted(folder):
    folder.path.mkdir(parents=True)

    folder.check(resume=False, force=False)

    assert list(folder.path.iterdir()) == []


def test_a_finished_run_is_refused_with_a_way_out(folder):
    said = refusal(started(folder, finished=True))

    assert str(folder.path) in said
    assert "holds a finished run; use --force" in said


def test_an_unfinished_run_is_refused_with_two_ways_out(folder):
    said = refusal(started(folder))

    assert "holds an unfinished run; use --resume to go on with it or --force" in said


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    "way", [{"resume": True, "force": False}, {"resume": False, "force": True}]
)
def test_resume_and_force_accept_a_run(folder, finished, way):
    started(folder, finished=finished).check(**way)

    assert folder.is_started
    assert folder.is_finished == finished


@pytest.mark.parametrize("way", [{}, {"resume": True}, {"force": True}])
def test_a_folder_of_something_else_is_refused_whatever_is_asked(folder, way):
    folder.path.mkdir(parents=True)
    (folder.path / "thesis.tex").touch()

    assert "is not empty and not a run directory" in refusal(folder, **way)


@pytest.mark.parametrize("way", [{}, {"resume": True}, {"force": True}])
def test_a_file_is_refused_whatever_is_asked(tmp_path, way):
    (tmp_path / "out").touch()

    assert "is a file; choose another output" in refusal(RunFolder(tmp_path / "out"), **way)


def test_a_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "out").touch()

    said = refusal(RunFolder(tmp_path / "out" / "run"))

    assert "cannot be written" in said
    assert "choose another output" in said


def test_a_folder_that_cannot_be_written_is_refused_for_root_too():
    assert "cannot be written" in refusal(RunFolder(Path("/proc/raysim/run")))


def test_a_name_the_file_system_refuses_is_refused(tmp_path):
    assert "cannot be" in refusal(RunFolder(tmp_path / ("x" * 300)))


def test_a_folder_in_use_by_another_process_is_refused(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"open\n"

        with pytest.raises(OutputError, match="is in use by another process"):
            RunFolder(folder.path).open(force=True)
        other.communicate()

    RunFolder(folder.path).open(force=False)  # free again


def test_an_attempt_that_resumes_by_itself_waits_for_the_one_before(folder, caplog):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert folder.check(resume="auto", force=False) is False
        threading.Timer(1.0, other.kill).start()
        folder.open(force=False)

    assert "is in use by another process" in caplog.text


def test_an_attempt_that_finds_a_run_begun_meanwhile_may_be_repeated(folder):
    assert folder.check(resume="auto", force=False) is False
    started(RunFolder(folder.path))

    with pytest.raises(OutputLost, match="start again to go on"):
        folder.open(force=False)


def test_the_lock_of_a_dead_process_does_not_bind(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        other.kill()

    folder.check(resume=False, force=False)
    folder.open(force=False)


def test_a_refused_lock_leaves_the_owner_and_its_files_alone(folder):
    folder.open(force=False)
    folder.write("config.yaml", "name: one\n")

    for _ in range(2):
        with pytest.raises(OutputError, match="in use"):
            RunFolder(folder.path).open(force=True)

    assert folder.is_started


def test_a_run_that_appeared_after_the_check_is_not_mixed_with_ours(folder):
    folder.check(resume=False, force=False)
    started(RunFolder(folder.path), finished=True)

    with pytest.raises(OutputError, match="finished run"):
        folder.open(force=False)


def test_resume_opens_what_is_there(folder):
    started(folder).check(resume=True, force=False)

    folder.open(force=False)

    assert len(folder.records()) == 1


def test_force_empties_the_folder(folder):
    started(folder, finished=True).check(resume=False, force=True)

    folder.open(force=True)

    assert [path.name for path in folder.path.iterdir()] == [".lock"]
    assert folder.records() == []


def test_force_never_removes_what_no_run_has_written(folder):
    # A project folder may hold a config.yaml of its own.
    folder.path.mkdir(parents=True)
    for name in ("config.yaml", "thesis.tex"):
        (folder.path / name).touch()
    with contextlib.suppress(OutputError):
        folder.check(resume=False, force=True)
        folder.open(force=True)

    assert (folder.path / "thesis.tex").exists()


def test_closing_twice_is_harmless(folder):
    folder.open(force=False)

    folder.close()
    folder.close()

    assert [path.name for path in folder.path.iterdir()] == [".lock"]
    folder.check(resume=False, force=False)


def test_who_opened_the_lock_before_it_was_released_keeps_others_out(folder):
    folder.open(force=False)
    with (folder.path / ".lock").open("r+b") as waiting:
        folder.close()
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)

        with pytest.raises(OutputError, match="in use by another process"):
            RunFolder(folder.path).open(force=False)


def test_records_of_a_run_without_its_config_are_never_mixed_with_ours(folder):
    folder.path.mkdir(parents=True)
    (folder.path / "rounds.jsonl").write_text('{"round": 1}\n')

    with contextlib.suppress(OutputError):
        folder.check(resume=False, force=False)
        folder.open(force=False)
        assert folder.records() == []


def test_a_start_that_died_before_its_config_does_not_block_the_folder(folder):
    folder.path.mkdir(parents=True)
    for name in ("run.log", ".config.yaml.part"):
        (folder.path / name).touch()

    folder.check(resume=False, force=False)


def test_a_file_that_cannot_be_written_leaves_the_old_one(folder):
    folder.open(force=False)
    folder.write("result.json", {"accuracy": 1})

    with pytest.raises(TypeError):
        folder.write("result.json", {"accuracy": object()})

    assert folder.read("result.json") == {"accuracy": 1}

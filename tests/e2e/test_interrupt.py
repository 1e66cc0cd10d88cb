"""Stopped and killed runs: the exit code, the checkpoint, and the same bits after --resume."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

LONG = ("quickstart", "model=small_cnn", "train.rounds=16", "train.epochs=1", "runtime.kind=local")
"""Long enough that a signal meets it at work."""
DONE_ROUNDS, TOTAL = 6, 18
"""Rounds after which the signal comes, and those of all stages."""


@pytest.fixture(scope="module")
def unbroken(_own_cache, tmp_path_factory):
    """Digest of the run that nobody stops."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    output = f"output={tmp_path_factory.mktemp('unbroken') / 'run'}"
    return Experiment(load_config(LONG[0], [*LONG[1:], output])).run().summary["digest"]


@pytest.fixture(scope="module")
def signalled():
    """Return a function that runs raysim, sends a signal when rounds are done, and waits."""

    def run(number, output, *overrides, rounds=DONE_ROUNDS, group=False):
        line = [sys.executable, "-m", "raysim", "run", *LONG, f"output={output}", *overrides]
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal reaches the whole group: see ``group``
        )
        try:
            wait_for_rounds(process, output / "rounds.jsonl", rounds)
            (os.killpg if group else os.kill)(process.pid, number)
            out, err = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                process.kill()
        return process.returncode, out, err

    return run


def wait_for_rounds(process, path, count):
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def resumed_digest(cli, output, *overrides):
    said = cli("run", *LONG, f"output={output}", *overrides, "--resume", "--json")
    assert said.code == 0, said.err
    return json.loads(said.out.splitlines()[-1])["digest"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_stopped_run_commits_and_resumes_to_the_same_bits(
    cli, signalled, tmp_path, unbroken, number
):
    output = tmp_path / "run"

    code, _, err = signalled(number, output)

    assert code == 130, err
    assert "stopped after train round" in err
    assert "go on with --resume" in err
    assert "Traceback" not in err
    assert (output / "checkpoint" / "manifest.json").is_file()
    assert not (output / "result.json").exists()
    recorded = (output / "rounds.jsonl").read_text().splitlines()
    manifest = json.loads((output / "checkpoint" / "manifest.json").read_text())["manifest"]
    assert DONE_ROUNDS <= manifest["finished"] == len(recorded) < TOTAL
    assert err.count("checkpoint written") == 1
    assert resumed_digest(cli, output) == unbroken


def test_a_stop_commits_even_between_sparse_checkpoints(cli, signalled, tmp_path, unbroken):
    output, sparse = tmp_path / "run", "checkpoint.every=1000"

    code, _, _ = signalled(signal.SIGINT, output, sparse)

    manifest = json.loads((output / "checkpoint" / "manifest.json").read_text())["manifest"]
    assert code == 130
    assert manifest["finished"] >= DONE_ROUNDS
    assert resumed_digest(cli, output, sparse) == unbroken


@pytest.mark.ray
@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["SIGINT to actors too", "SIGTERM"],  # as a terminal sends Ctrl-C, and as `kill` does
)
def test_a_stopped_run_on_actors_resumes_to_the_same_bits(
    cli, signalled, tmp_path, unbroken, number, group
):
    output = tmp_path / "run"

    code, _, err = signalled(number, output, "runtime={kind: ray, actors: 2}", group=group)

    assert code == 130, err
    assert "go on with --resume" in err
    assert "Traceback" not in err
    assert resumed_digest(cli, output) == unbroken  # alone: the number of actors is free


@pytest.fixture(scope="module")
def _killed_once(signalled, tmp_path_factory):
    output = tmp_path_factory.mktemp("killed") / "run"
    code, _, _ = signalled(signal.SIGKILL, output)
    assert code == -signal.SIGKILL
    return output


@pytest.fixture
def killed(_killed_once, tmp_path):
    """The folder of a run that got SIGKILL."""
    return shutil.copytree(_killed_once, tmp_path / "run")


def test_a_killed_run_is_not_started_over_by_accident(cli, refused, picture, killed):
    before = picture(killed)

    said = cli("run", *LONG, f"output={killed}")

    refused(said, 2, ["output", str(killed), "holds an unfinished run", "--resume", "--force"])
    assert picture(killed) == before


def test_a_killed_run_resumes_to_the_same_bits(cli, killed, unbroken):
    assert resumed_digest(cli, killed) == unbroken


def test_one_command_line_begins_goes_on_and_finds_the_finished_run(
    cli, signalled, tmp_path, unbroken
):
    output, auto = tmp_path / "run", "--resume=auto"

    begun, _, _ = signalled(signal.SIGKILL, output, auto)
    left = (output / "result.json").exists()
    said = [cli("run", *LONG, f"output={output}", auto, "--json") for _ in range(2)]

    assert (begun, left) == (-signal.SIGKILL, False)
    assert [one.code for one in said] == [0, 0], said[0].err + said[1].err
    digests = [json.loads(one.out.splitlines()[-1])["digest"] for one in said]
    assert digests == [unbroken, unbroken]
    assert ["resumed after" in one.err for one in said] == [True, False]


def test_another_way_to_resume_is_refused(cli, tmp_path):
    said = cli("run", *LONG, f"output={tmp_path / 'run'}", "--resume=perhaps")

    assert said.code == 2
    assert "'perhaps' is not one of" in said.err


def test_a_record_cut_in_the_middle_does_not_prevent_resuming(cli, killed, unbroken):
    with (killed / "rounds.jsonl").open("a") as file:
        file.write('{"stage": "train", "rou')  # what a full disk or a power cut leaves

    assert resumed_digest(cli, killed) == unbroken


def test_a_damaged_checkpoint_falls_back_to_the_one_before(cli, killed, unbroken):
    manifest = killed / "checkpoint" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])

    assert resumed_digest(cli, killed) == unbroken


def test_a_run_without_any_readable_checkpoint_says_so(cli, killed):
    for path in (killed / "checkpoint" / "objects").iterdir():
        path.write_bytes(path.read_bytes()[:100])

    said = cli("run", *LONG, f"output={killed}", "--resume")

    assert said.code == 1
    assert "every commit in" in said.err
    assert "--force" in said.err
    assert "Traceback" not in said.err


def test_a_killed_run_can_be_started_anew_with_force(cli, killed, unbroken):
    said = cli("run", *LONG, f"output={killed}", "--force", "--json")

    assert said.code == 0
    assert json.loads(said.out.splitlines()[-1])["digest"] == unbroken
    assert (killed / "rounds.jsonl").read_bytes().count(b"\n") == TOTAL


def test_ctrl_c_while_data_is_loaded_says_what_happened(cli, tmp_path, monkeypatch):
    from raysim.experiment import Experiment

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "prepare", interrupted)
    said = cli("run", *LONG, f"output={tmp_path / 'run'}")

    assert said.code == 130
    assert "interrupted" in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run").exists()

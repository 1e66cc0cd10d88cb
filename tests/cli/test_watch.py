"""``raysim watch``: real run directories, while they grow, end, fail and lie still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest
from click.testing import CliRunner

import raysim.cli.watch as watch
from raysim.cli.watch import Follower
from raysim.config import config_yaml, load_config
from raysim.errors import ClientFailed, ConfigError, DataError, Interrupted
from raysim.protocols import Where
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event
from raysim.runtime.events import keep_logs
from raysim.storage.objects import open_storage

RUN = {"name": "quickstart", "method": "fb_nll", "seed": 0}
SETTINGS = ("train.rounds=4", "runtime.kind=local")


def record(stage, number, **more):
    return RoundRecord(stage, number, seconds=1.0, **more)


@pytest.fixture(params=["folder", "url"])
def place(request, tmp_path):
    """A run directory that is not there yet."""
    return tmp_path / "run" if request.param == "folder" else f"memory://watch-{uuid.uuid4().hex}/r"


@pytest.fixture
def begun(place):
    """A run that has started, its lock held by this process."""
    folder = begin(place)
    yield folder
    folder.close()


def begin(place):
    folder = RunFolder(place)
    folder.open(force=False)
    folder.write("config.yaml", config_yaml(load_config("quickstart", SETTINGS)))
    folder.write("environment.json", {"actors": []})
    return folder


def once(place):
    """Return the exit code and what one look prints."""
    done = CliRunner().invoke(watch.command, [str(place), "--once"], catch_exceptions=False)
    return done.exit_code, done.stdout


def test_a_run_that_is_not_there_is_waited_for(place):
    follower = Follower(open_storage(place))

    story = follower.look()

    assert (story.outcome, story.message) == ("waiting", "no run here yet; waiting for it to start")
    with pytest.raises(DataError, match="no run directory at"):
        once(place)


def test_rounds_are_taken_as_they_come_and_a_torn_line_waits(begun, tmp_path):
    follower = Follower(begun.storage)
    with keep_logs(begun, run=RUN, where=lambda: None) as listen:
        assert follower.look().outcome == "setup"
        listen(Event("start", rounds=6))
        listen(Event("commit", round=0))
        begun.append(record("group", 1, groups=[0, 1], ari=1.0))
        first = len(follower.look().rounds)
        begun.storage.append("rounds.jsonl", b'{"stage": "cor')
        torn = len(follower.look().rounds)
        begun.storage.append("rounds.jsonl", b'rect", "round": 1, "seconds": 1.0}\n')
        whole = len(follower.look().rounds)

    assert (first, torn, whole) == (1, 1, 2)
    story = follower.look()
    assert story.title == "quickstart  fb_nll  digits  seed 0"
    assert story.stages == [("group", 1), ("correct", 1), ("train", 4)]


def test_a_resumed_run_is_read_anew(begun):
    follower = Follower(begun.storage)
    for number in (1, 2, 3):
        begun.append(record("train", number))
    follower.look()

    begun.keep_records(1)
    begun.append(record("train", 2, loss=0.5))

    rounds = follower.look().rounds
    assert [(r.round, r.loss) for r in rounds] == [(1, None), (2, 0.5)]


def test_a_finished_run_is_shown_and_left_with_0(begun, place):
    begun.append(record("train", 1, accuracy={"mean": 0.5, "std": 0.0}))
    begun.write("result.json", {})

    code, out = once(place)

    assert code == 0
    assert "done" in out.splitlines()[0]
    assert "50.0 %" in out


@pytest.mark.parametrize("options", [["--once"], []])
def test_records_that_were_changed_are_named_and_give_1(begun, place, options):
    begun.append(record("train", 1, accuracy={"mean": 0.5, "std": 0.0}))
    begun.write("result.json", {})
    content = begun.storage.read("rounds.jsonl")
    begun.storage.write("rounds.jsonl", content.replace(b"0.5", b"0.6"))

    done = CliRunner().invoke(watch.command, [str(place), *options], catch_exceptions=False)

    assert done.exit_code == 1
    assert "60.0" in done.stdout
    assert "rounds.jsonl is damaged" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (ClientFailed(5, "train_task", "ValueError: bad", Where("train", 1, 9)), "failed"),
        (Interrupted("stopped after train round 2/4; go on with --resume"), "stopped"),
    ],
)
def test_a_run_that_broke_says_why_and_gives_1(begun, place, wrong, word):
    with keep_logs(begun, run=RUN, where=lambda: None) as listen:
        listen(Event("start", rounds=6))
    with pytest.raises(type(wrong)), keep_logs(begun, run=RUN, where=lambda: None):
        raise wrong
    begun.close()

    code, out = once(place)

    assert code == 1
    assert word in out.splitlines()[0]
    assert str(wrong).split(";")[0] in " ".join(out.split())


def test_a_broken_run_that_somebody_goes_on_with_is_followed(begun):
    with pytest.raises(Interrupted), keep_logs(begun, run=RUN, where=lambda: None):
        raise Interrupted("stopped")

    story = Follower(begun.storage).look()  # the lock is held: it is starting again

    assert (story.outcome, story.message) == ("setup", "starting again")


def test_a_dead_run_is_found_out_by_its_lock(begun, place):
    begun.append(record("group", 1, groups=[0], ari=1.0))
    alive = once(place)
    begun.close()

    code, out = once(place)

    assert alive[0] == 0
    assert code == 1
    assert "not running" in out
    assert "no process holds this run; go on with --resume" in out


def test_asking_for_the_lock_keeps_nobody_out(begun, place):
    storage = open_storage(place)

    assert storage.is_in_use()
    begun.close()
    assert not storage.is_in_use()
    again = storage.lock()
    assert storage.is_in_use()
    again.release()


def test_a_folder_of_several_runs_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("")

    with pytest.raises(ConfigError, match="holds 2 runs"):
        once(tmp_path)


def test_lines_that_are_no_objects_are_left_out(begun, place):
    begun.append(record("group", 1))
    begun.storage.append("rounds.jsonl", b"no json\n[1]\n")
    warning = b'{"level": "WARNING", "message": "rank was capped"}\n'
    begun.storage.append("events.jsonl", b'no json\n[1]\n"x"\n{"time": 3}\n' + warning)

    code, out = once(place)

    assert code == 0
    assert "group   1/1" in out
    assert "warning  rank was capped" in out


# ---- a real run, from a second process -------------------------------------------------------


def start(*arguments, **options):
    line = [sys.executable, "-m", "raysim", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, **pipes, preexec_fn=_interruptible, **options)


def _interruptible() -> None:
    """Undo what a shell does to background jobs: they ignore SIGINT, and so do their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_real_run_is_followed_to_its_end(tmp_path):
    path = tmp_path / "run"
    watching = start("watch", path, "--interval", "0.2", text=True)  # before there is anything
    running = start("run", "quickstart", *SETTINGS, f"output={path}", "--quiet")
    out, err = watching.communicate(timeout=120)

    assert running.wait(timeout=60) == 0
    assert watching.returncode == 0, err
    assert "waiting for it to start" in err
    records = [json.loads(text) for text in (path / "rounds.jsonl").read_text().splitlines()]
    lines = out.splitlines()
    heads = [f"{r['stage']} {r['round']}/{4 if r['stage'] == 'train' else 1}" for r in records]
    assert [text.split("  ")[0] for text in lines[:-1]] == heads
    assert f"acc {100 * records[-1]['accuracy']['mean']:.1f}" in lines[-2]
    assert lines[-1] == "done after 6 rounds"


def test_a_killed_run_is_missed(tmp_path):
    path = tmp_path / "run"
    long = ("train.rounds=100000", "runtime.kind=local", f"output={path}", "--quiet")
    running = start("run", "quickstart", *long)
    watching = start("watch", path, "--interval", "0.2", text=True)
    seen = [watching.stdout.readline() for _ in range(3)]  # group, correct, one round
    alive = once(path)[0]
    running.kill()
    running.communicate()
    _, err = watching.communicate(timeout=60)

    assert seen[2].startswith("train 1/100000")
    assert alive == 0
    assert watching.returncode == 1
    assert "no process holds this run; go on with --resume" in err


def test_ctrl_c_ends_the_watching_quietly_with_130(tmp_path):
    folder = begin(tmp_path / "run")
    watching = start("watch", tmp_path / "run", env={**os.environ, "PYTHONUNBUFFERED": "1"})
    folder.append(record("group", 1, groups=[0], ari=1.0))
    assert watching.stdout.readline().startswith(b"group 1/1")

    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=30)

    folder.close()
    assert (watching.returncode, out, err) == (130, b"", b"")

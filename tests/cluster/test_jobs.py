"""``raysim submit``, ``status`` and ``fetch`` against a real head with token authentication."""

from __future__ import annotations

import json
import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raysim.config import load_config
from raysim.experiment import Experiment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
head = runpy.run_path(str(Path(__file__).with_name("isolated_head.py")))["head"]
SHORT = ("quickstart", "train.rounds=3", "runtime.actors=2")
LONG = ("quickstart", "name=long", "train.rounds=40", "train.epochs=150", "runtime.actors=2")


@pytest.fixture(scope="module")
def digest(_own_cache, tmp_path_factory):
    """Return a function that gives the digests of a local run of the same config."""

    def run(config, *overrides):
        where = tmp_path_factory.mktemp("local") / "run"
        more = ["runtime.kind=local", "runtime.actors=auto", f"output={where}"]
        return Experiment(load_config(config, [*overrides, *more])).run().summary["digest"]

    return run


@pytest.fixture(scope="module")
def submit(head):
    """Return a function that submits a run and returns (what was done, what it told as JSON)."""

    def call(*line, **environment):
        storage = ("--storage", head.storage, "--address", head.address, "--json")
        done = head.raysim("submit", *line, *storage, **environment)
        return done, json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}

    return call


@pytest.fixture(scope="module")
def finished(submit):
    """A short run that was followed to its end."""
    return submit(*SHORT, "--follow")


def status(head, *line):
    done = head.raysim("status", *line, "--json", "--address", head.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def test_a_followed_run_shows_its_rounds_and_leaves_with_its_code(finished, head):
    done, told = finished

    assert done.returncode == 0, done.stderr
    assert "train 3/3" in done.stderr  # standard output is for the JSON object
    assert told["exit_code"] == 0
    assert told["run_dir"] == f"{head.storage}/runs/quickstart/fb_nll/seed0"


def test_the_fetched_run_has_the_bits_of_a_local_one(finished, head, digest):
    job, home = finished[1]["job"], head.laptop / "home"

    done = head.raysim("fetch", job, "--address", head.address, "--to", home)

    assert done.returncode == 0, done.stderr
    assert str(home) in done.stdout  # shown like `raysim show`
    assert json.loads((home / "result.json").read_text())["digest"] == digest(*SHORT)
    there = contents(Path(finished[1]["run_dir"]))
    left = ("checkpoint/", "models/", ".lock")  # without --models
    wanted = {n: c for n, c in there.items() if not n.startswith(left)}
    assert contents(home) == wanted
    assert {"events.jsonl", "run.log", "config.yaml", "rounds.jsonl"} <= set(wanted)


def test_fetch_refuses_to_overwrite_and_brings_models_when_asked(finished, head):
    run, home = finished[1]["run_dir"], head.laptop / "models"
    line = ("fetch", run, "--address", head.address, "--to", home)

    first = head.raysim(*line)
    before = contents(home)
    again = head.raysim(*line, "--models")
    untouched = contents(home) == before
    forced = head.raysim(*line, "--models", "--force")

    assert [d.returncode for d in (first, again, forced)] == [0, 2, 0], forced.stderr
    assert untouched
    assert "use --force" in again.stderr
    assert {n: c for n, c in contents(Path(run)).items() if n != ".lock"} == contents(home)
    assert sorted(p.name for p in head.laptop.iterdir() if p.name.startswith(".")) == []


def test_fetch_without_a_folder_puts_the_run_where_a_local_one_would_be(finished, head):
    done = head.raysim("fetch", finished[1]["job"], "--address", head.address, "--json")

    assert done.returncode == 0, done.stderr
    assert (head.laptop / "runs/quickstart/fb_nll/seed0/result.json").is_file()
    assert json.loads(done.stdout)["run_dir"] == "runs/quickstart/fb_nll/seed0"


def test_a_run_that_is_not_there_is_not_fetched(head):
    gone = head.raysim("fetch", head.storage / "nothing", "--address", head.address, "--to", "x")
    unknown = head.raysim("fetch", "no-such-job-1", "--address", head.address, "--to", "x")

    assert (gone.returncode, unknown.returncode) == (2, 2)
    assert "no run directory at" in gone.stderr
    assert "no job 'no-such-job-1'" in unknown.stderr
    assert not (head.laptop / "x").exists()


def test_a_run_that_fails_in_the_job_gives_its_own_code(finished, submit, head):
    done, told = submit(*SHORT, "--follow")  # the run directory is taken by a finished run

    assert done.returncode == 2
    assert told["exit_code"] == 2
    assert "holds a finished run" in done.stderr
    one = status(head, told["job"])
    assert (one["status"], one["exit_code"]) == ("failed", 2)


def test_status_lists_runs_and_nothing_else(finished, head):
    told = status(head)

    row = next(row for row in told["jobs"] if row["job"] == finished[1]["job"])
    assert (row["status"], row["exit_code"]) == ("succeeded", 0)
    assert row["run_dir"] == finished[1]["run_dir"]
    assert row["progress"].startswith("train 3/3")
    assert not [row for row in told["jobs"] if row["job"].startswith("fetch-")]
    text = head.raysim("status", "--address", head.address).stdout
    assert finished[1]["job"] in text
    assert "train 3/3" in text


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 64}, "refused this machine's token"),
        ({"HOME": "/nonexistent"}, "asks for a token and got none"),
        ({"HOME": "/nonexistent", "RAY_AUTH_MODE": ""}, "asks for a token and got none"),
        ({"RAY_AUTH_MODE": "disabled"}, "asks for a token and got none"),
    ],
)
def test_without_the_right_token_nobody_gets_in(head, environment, says):
    line = ("submit", *SHORT, "--storage", head.storage, "--address", head.address)

    done = head.raysim(*line, **environment)

    assert done.returncode == 3, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "0" * 64 not in done.stderr


def wait_for_training(head, job):
    deadline = time.monotonic() + 120
    while not status(head, job)["progress"].startswith("train "):
        assert time.monotonic() < deadline, status(head, job)
        time.sleep(0.5)


def stop(head, job):
    return head.raysim("status", job, "--stop", "--follow", "--address", head.address)


def test_a_second_run_in_the_same_place_is_refused_with_its_own_code(head, submit):
    endless = ("quickstart", "name=endless", "train.rounds=1000000", "runtime.actors=1")
    first = submit(*endless)[1]
    wait_for_training(head, first["job"])

    done, told = submit(*endless, "--resume", "--follow")
    ended = stop(head, first["job"])

    assert done.returncode == told["exit_code"] == 2
    assert "is in use by another process" in done.stderr
    assert ended.returncode == 130, ended.stderr


def test_a_run_under_rays_own_job_submission_uses_the_cluster(head, digest):
    run_dir = head.storage / "direct"
    run = ("quickstart", "train.rounds=2", "runtime.per_actor.cpus=2")
    job = ("ray", "job", "submit", "--address", head.address, "--")
    done = head.run(*job, sys.executable, "-m", "raysim", "run", *run, f"output={run_dir}")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "runtime ray: RAY_ADDRESS is " in done.stdout
    actors = json.loads((run_dir / "environment.json").read_text())["actors"]
    assert [row["role"] for row in actors].count("clients") == 2
    assert json.loads((run_dir / "result.json").read_text())["digest"] == digest(*run[:2])


def test_a_killed_job_is_submitted_again_and_ends_with_the_same_bits(head, submit, digest):
    config = (LONG[0], "name=healed", *LONG[2:])
    with ThreadPoolExecutor() as pool:
        heal = pool.submit(submit, *config, "--retries", "1", "--driver-cpus", "0.5")
        records = head.storage / "runs/healed/fb_nll/seed0/rounds.jsonl"
        deadline = time.monotonic() + 120
        while not (records.is_file() and records.read_bytes().count(b"\n") > 3):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        driver = head.run("pgrep", "-xf", "[^ ]*python[0-9.]* -m raysim run config.yaml").stdout
        assert head.run("kill", "-KILL", *driver.split()).returncode == 0, driver
        done, told = heal.result()

    assert done.returncode == 0, done.stderr
    assert told["attempts"] == 2
    assert "attempt 2 of 2" in done.stderr
    assert "resumed after" in done.stderr
    result = json.loads((Path(told["run_dir"]) / "result.json").read_text())
    assert result["digest"] == digest(*config)


@pytest.fixture(scope="module")
def stopped(head, submit):
    """A long run: submitted, stopped in the middle, resumed."""
    first = submit(*LONG)[1]
    wait_for_training(head, first["job"])
    end = stop(head, first["job"])
    middle = status(head, first["job"])
    records = (Path(first["run_dir"]) / "rounds.jsonl").read_text().splitlines()
    return {
        "end": end,
        "middle": middle,
        "rounds": len(records),
        "resumed": submit(*LONG, "--resume", "--follow"),
        "run_dir": Path(first["run_dir"]),
    }


def test_a_stopped_run_commits_and_a_resumed_one_ends_with_the_same_bits(stopped, digest):
    assert stopped["end"].returncode == 130
    assert stopped["middle"]["status"] == "stopped"
    assert "checkpoint written, go on with --resume" in stopped["end"].stdout
    assert 0 < stopped["rounds"] < 42  # group and correct are rounds too
    done, _ = stopped["resumed"]
    assert done.returncode == 0, done.stderr
    assert "resumed after" in done.stderr
    result = json.loads((stopped["run_dir"] / "result.json").read_text())
    assert result["digest"] == digest(*LONG)


def test_the_events_tell_the_story_of_the_run(stopped):
    text = (stopped["run_dir"] / "events.jsonl").read_text()
    events = [json.loads(line) for line in text.splitlines()]

    kinds = [line.get("event") for line in events]
    assert [line["outcome"] for line in events if line.get("event") == "end"] == ["stopped", "done"]
    assert kinds.count("start") == 2
    assert kinds.count("round") == len(
        (stopped["run_dir"] / "rounds.jsonl").read_text().splitlines()
    )
    assert {line["run"]["name"] for line in events} == {"long"}


def test_the_token_is_nowhere_in_runs_jobs_and_logs(finished, stopped, head):
    secret = head.token.encode()
    ask = (
        "import sys; from ray.job_submission import JobSubmissionClient as C\n"
        "for job in C(sys.argv[1]).list_jobs(): print(job.json())"
    )

    jobs = head.run(sys.executable, "-c", ask, head.address).stdout
    logs = head.run("sh", "-c", "cat /tmp/ray/session_latest/logs/*job-driver-* ").stdout

    assert finished[1]["job"] in jobs
    assert "train 3/3" in logs
    kept = [*contents(head.storage).items(), *contents(head.laptop).items()]
    kept += [("jobs", jobs.encode()), ("logs", logs.encode())]
    assert [name for name, content in kept if secret in content] == []
    assert len(kept) > 20

"""A full disk: the run ends with one clear sentence, and goes on to the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, shutil, sys
from pathlib import Path
from raysim.config import load_config
from raysim.errors import RaysimError
from raysim.experiment import Experiment
from raysim.storage.checkpoint import read_manifest

disk, runtime, *attempts = json.loads(sys.argv[1])
disk = Path(disk)


def experiment(folder):
    short = ["train.rounds=4", f"output={folder}", f"runtime={json.dumps(runtime)}"]
    return Experiment(load_config("quickstart", short))


def fill(free_pages):
    # A real ballast on a real file system: what fails later is the kernel's answer.
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pages = file.tell() // 4096
        file.truncate(4096 * (pages - free_pages))


def fills_at(kind, round_id, free_pages):
    def listen(event):
        if event.kind == kind and event.round == round_id and event.stage in ("train", ""):
            fill(free_pages)

    return listen


def attempt(kind, round_id, free_pages):
    folder = disk / "run"
    wrong = None
    try:
        experiment(folder).run(listeners=[fills_at(kind, round_id, free_pages)])
    except RaysimError as caught:
        wrong = {"kind": type(caught).__name__, "says": str(caught)}
    left = [str(path.relative_to(folder)) for path in folder.rglob("*.part")]
    torn = not (folder / "rounds.jsonl").read_bytes().endswith(b"\\n")
    finished = read_manifest(folder / "checkpoint")["finished"]
    (disk / "ballast").unlink()
    digest = experiment(folder).run(resume=True).summary["digest"]
    shutil.rmtree(folder)
    return {"wrong": wrong, "left": left, "torn": torn, "finished": finished, "digest": digest}


facts = [attempt(*how) for how in attempts]
print("FACTS " + json.dumps(facts), flush=True)
"""


def on_small_disk(
    folder: Path, runtime: dict[str, Any], attempts: list[tuple[str, int, int]]
) -> tuple[list[dict[str, Any]], str]:
    """Run the attempts on a disk of one megabyte that only they can see."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = folder / "disk"
    disk.mkdir()
    command = 'mount -t tmpfs -o size=1m tmpfs "$1" && shift && exec "$@"'
    python = [sys.executable, "-c", SCRIPT, json.dumps([str(disk), runtime, *attempts])]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, "sh", str(disk), *python],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RAY_ADDRESS": ""},
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert told, done.stderr[-3000:]
    return json.loads(told[-1].removeprefix("FACTS ")), done.stderr


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory, _own_cache) -> dict[str, Any]:
    from raysim.config import load_config
    from raysim.experiment import Experiment

    output = tmp_path_factory.mktemp("unbroken") / "run"
    config = load_config("quickstart", ["train.rounds=4", f"output={output}", "runtime.kind=local"])
    return Experiment(config).run().summary["digest"]


def check(fact: dict[str, Any], unbroken: dict[str, Any], disk: str) -> None:
    wrong = fact["wrong"]
    assert wrong["kind"] in ("OutputError", "CheckpointError")
    assert disk in wrong["says"]
    assert "No space left on device" in wrong["says"]
    assert "free space" in wrong["says"]
    assert "--resume" in wrong["says"]
    assert (fact["left"], fact["torn"]) == ([], False)
    assert fact["finished"] >= 3
    assert fact["digest"] == unbroken


def test_a_full_disk_ends_the_run_and_resume_goes_on_to_the_same_bits(tmp_path, unbroken):
    # Full after the last commit, before the result; and full at each of the files of a commit.
    attempts = [("commit", 6, 0), *(("round", 2, pages) for pages in range(5))]

    facts, said = on_small_disk(tmp_path, {"kind": "local"}, attempts)

    kinds = {fact["wrong"]["kind"] for fact in facts if fact["wrong"]}
    assert kinds == {"OutputError", "CheckpointError"}
    assert sum(fact["wrong"] is not None for fact in facts) >= 4
    for fact in facts:
        if fact["wrong"]:
            check(fact, unbroken, str(tmp_path / "disk"))
        assert fact["digest"] == unbroken
    assert "Traceback" not in said


@pytest.mark.ray
@pytest.mark.slow
def test_a_full_disk_under_actors_ends_the_run_the_same_way(tmp_path, unbroken):
    runtime = {"kind": "ray", "actors": 2}

    (fact,), _ = on_small_disk(tmp_path, runtime, [("round", 2, 0)])

    assert fact["wrong"]["kind"] == "CheckpointError"
    check(fact, unbroken, str(tmp_path / "disk"))


LIMITED = """
import resource, sys
import numpy as np
from raysim.errors import CheckpointError
from raysim.storage.checkpoint import read_manifest, write_manifest, write_object

folder = sys.argv[1]
digest = write_object(folder, {"a": np.zeros(10)})
write_manifest(folder, {"models": {"m": digest}, "memory": {}, "finished": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_object(folder, {"a": np.zeros(10_000)})
except CheckpointError as wrong:
    print(wrong)
print(read_manifest(folder)["finished"])
"""


def test_an_object_that_does_not_fit_leaves_the_commit_before_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")], capture_output=True, text=True
    )

    says, finished = done.stdout.splitlines()
    assert f"{tmp_path}/run could not be written (File too large)" in says
    assert "free space" in says
    assert "--resume" in says
    assert finished == "1"
    assert len(list((tmp_path / "run" / "objects").iterdir())) == 1


def test_a_record_that_does_not_fit_is_cut_off_again(tmp_path):
    script = """
import resource, sys
from raysim.errors import OutputError
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord

folder = RunFolder(sys.argv[1])
folder.open(force=False)
folder.append(RoundRecord.from_json({"round": 1}))
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
try:
    folder.append(RoundRecord.from_json({"round": 2, "long": "x" * 10_000}))
except OutputError as wrong:
    print(wrong)
print([record.to_json() for record in folder.records()])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True
    )

    says, records = done.stdout.splitlines()
    assert says.startswith(f"rounds.jsonl could not be written to {tmp_path}/run")
    assert records == "[{'round': 1}]"
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == '{"round": 1}\n'

"""Whole runs with their output on S3: moto's server on loopback, s3fs in front of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from raysim.config import load_config
from raysim.errors import OutputError, RaysimError
from raysim.experiment import Experiment
from raysim.runs.folder import RunFolder
from raysim.storage.checkpoint import read_manifest
from raysim.storage.objects import open_storage

BUCKET = "runs"
SECRET = "a-word-that-must-not-appear"
SHORT = ["runtime.kind=local", "train.rounds=4"]


class Server:
    """An S3 that can go away and come back with what it held."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        self._server.stop()

    def start_again(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()


@pytest.fixture(scope="module")
def server(_own_cache: None) -> Iterator[Server]:
    from s3fs import S3FileSystem

    found = Server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        S3FileSystem.clear_instance_cache()
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield found
        S3FileSystem.clear_instance_cache()
    found.stop()


@pytest.fixture
def output(server: Server, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}/run"


@pytest.fixture(scope="module")
def on_disk(_own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disk") / "run"
    return dict(run(str(folder)).summary)


def run(output: str, *overrides: str, **options: Any) -> Any:
    config = load_config("quickstart", [*SHORT, f"output={output}", *overrides])
    return Experiment(config).run(**options)


def raysim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "raysim", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_run_on_s3_has_the_bits_and_files_of_one_on_disk(output, on_disk):
    result = run(output)

    assert result.summary["digest"] == on_disk["digest"]
    assert result.run_dir == result.summary["run_dir"] == output
    on_s3 = open_storage(output)
    disk = open_storage(on_disk["run_dir"])
    assert on_s3.names() == [name for name in disk.names() if name != ".lock"]
    for folder in ("artifacts", "checkpoint", "checkpoint/objects"):
        assert on_s3.names(folder) == disk.names(folder)
    assert on_s3.read("run.log") is not None


def test_nothing_secret_is_written(output):
    run(output, "train.rounds=1")
    client = boto3.client("s3")
    prefix = output.removeprefix(f"s3://{BUCKET}/")

    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]
    texts = [client.get_object(Bucket=BUCKET, Key=o["Key"])["Body"].read() for o in found]

    assert len(found) > 5
    assert not any(SECRET.encode() in text for text in texts)


class StopAfter:
    """Listener that breaks the run after a number of rounds, before their commit."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def __call__(self, event: Any) -> None:
        if event.kind == "round":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [1, 4])
def test_an_interrupted_run_goes_on_to_the_same_bits(output, on_disk, rounds):
    with pytest.raises(KeyboardInterrupt):
        run(output, listeners=[StopAfter(rounds)])
    with pytest.raises(OutputError, match="holds an unfinished run"):
        run(output)

    assert run(output, resume=True).summary["digest"] == on_disk["digest"]
    assert run(output, resume=True).summary["digest"] == on_disk["digest"]  # nothing left to do


def test_a_run_whose_storage_goes_away_ends_clearly_and_goes_on(server, output, on_disk):
    def cut(event: Any) -> None:
        if event.kind == "round" and (event.stage, event.round) == ("train", 2):
            server.stop()

    try:
        with pytest.raises(RaysimError) as caught:
            run(output, listeners=[cut])
    finally:
        server.start_again()

    assert output in str(caught.value)
    assert "then go on with --resume" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert read_manifest(f"{output}/checkpoint")["finished"] == 3
    lock_of_the_dead(output)
    assert run(output, resume=True).summary["digest"] == on_disk["digest"]


def lock_of_the_dead(output: str) -> None:
    """Remove the lock that could not be given back; a minute would do it as well."""
    with pytest.raises(OutputError, match="if it is dead, try again in"):
        RunFolder(output).open(force=False)
    open_storage(output).remove_folder(".lock")


def test_a_damaged_newest_commit_falls_back(output, on_disk):
    with pytest.raises(KeyboardInterrupt):
        run(output, listeners=[StopAfter(5)])
    storage = open_storage(f"{output}/checkpoint")
    newest = storage.read("manifest.json")
    storage.write("manifest.json", newest[:-20])

    resumed = run(output, resume=True)

    assert resumed.summary["digest"] == on_disk["digest"]
    assert "manifest-damaged.json" in storage.names()


def test_a_bucket_that_is_not_there_is_refused_before_anything_runs(server):
    with pytest.raises(OutputError, match=r"s3://nowhere/run cannot be"):
        run("s3://nowhere/run")


def test_the_command_line_takes_urls(output, on_disk):
    override = [*SHORT, f"output={output}"]
    started = raysim("run", "quickstart", *override, "--quiet")
    again = raysim("run", "quickstart", *override, "--quiet")
    shown = raysim("show", output, "--json")
    parent = raysim("show", output.rpartition("/")[0])
    nothing = raysim("show", f"{output}/nothing")

    assert started.returncode == 0, started.stderr
    assert f"run directory  {output}" in started.stdout
    assert again.returncode == 2
    assert "holds a finished run" in again.stderr
    assert json.loads(shown.stdout)["digest"] == on_disk["digest"]
    assert f"run directory  {output}" in parent.stdout
    assert (nothing.returncode, "no run directory at" in nothing.stderr) == (2, True)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in started.stdout + started.stderr

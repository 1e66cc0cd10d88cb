"""Logs of jobs without a cluster: silence before the end, logs that cannot be read."""

from __future__ import annotations

import asyncio
import json

import pytest

from raysim.cli import status
from raysim.errors import EnvironmentNotFit
from raysim.runtime.ray import jobs as jobs_module
from raysim.runtime.ray.jobs import RUN, Job, Jobs


def job(name: str) -> Job:
    return Job(name, RUN, "succeeded", True, 0, 1.0, "/runs/x", "0.1.0", "")


class Silent(Jobs):
    """A job whose connection dies after the first line; it says another one and ends."""

    def __init__(self) -> None:
        self._client = self

    async def tail_job_logs(self, job_id: str):
        yield "first\n"
        await asyncio.sleep(3600)

    def get(self, job_id: str) -> Job:
        return job(job_id)

    def log(self, job_id: str) -> str:
        return "first\nlast\n"


def test_what_was_said_between_silence_and_end_is_shown(monkeypatch):
    monkeypatch.setattr(jobs_module, "QUIET_S", 0.01)

    assert list(Silent().follow("a")) == ["first\n", "last\n"]


class OneUnreadable(Jobs):
    """Two jobs, one with a log that cannot be read."""

    def __init__(self) -> None:
        self.address = "http://127.0.0.1:8265"

    def all(self) -> list[Job]:
        return [job("lost"), job("good")]

    def log(self, job_id: str) -> str:
        if job_id == "lost":
            raise EnvironmentNotFit("Ray answers 500")
        return "train 1/1  acc 80\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_that_cannot_be_read_is_a_dash_in_the_list(capsys, as_json):
    status._show_all(OneUnreadable(), as_json=as_json)

    out = capsys.readouterr().out
    if as_json:
        assert [row["progress"] for row in json.loads(out)["jobs"]] == [None, "train 1/1  acc 80"]
    else:
        lost, good = out.splitlines()[1:]
        assert lost.rstrip().endswith(" -")
        assert good.rstrip().endswith("acc 80")


class Failing(Jobs):
    """A cluster on which the first attempts fail; what was submitted is kept."""

    codes: tuple[int, ...] = ()

    def __init__(self, address: str | None) -> None:
        self.address = "http://127.0.0.1:8265"
        self.lines: list[str] = []
        type(self).made = self

    def submit(self, entrypoint, files, *, job_id, **facts):
        self.lines.append(entrypoint.removeprefix("python -m raysim run config.yaml").strip())

    def follow(self, job_id):
        yield f"log of {job_id}\n"

    def get(self, job_id: str) -> Job:
        code = self.codes[len(self.lines) - 1]
        return Job(job_id, RUN, "failed", True, code, 1.0, "/runs/x", "0.1.0", "it broke")


@pytest.mark.parametrize(
    ("codes", "retries", "lines"),
    [
        ((1, 137, 0), 3, ["", "--resume=auto", "--resume=auto"]),
        ((1, 1), 1, ["", "--resume=auto"]),
        ((1,), 0, [""]),
        ((2,), 3, [""]),
        ((130,), 3, [""]),
    ],
    ids=["healed", "given up", "no retries", "wrong config", "stopped"],
)
def test_a_failed_job_is_submitted_again_to_go_on(capsys, monkeypatch, codes, retries, lines):
    from raysim.cli import submit
    from raysim.cli.main import main

    monkeypatch.setattr(submit, "RETRY_AFTER_S", 0.0)
    monkeypatch.setattr(jobs_module, "Jobs", type("Cluster", (Failing,), {"codes": codes}))
    line = ["submit", "quickstart", "--storage", "/mnt", "--follow", "--retries", str(retries)]

    with pytest.raises(SystemExit) as left:
        main([*line, "--json"])

    said = capsys.readouterr()
    assert jobs_module.Jobs.made.lines == lines
    assert left.value.code == codes[-1]
    told = json.loads(said.out)
    assert (told["attempts"], told["exit_code"]) == (len(codes), codes[-1])
    for number in range(1, len(codes) + 1) if retries else ():
        assert f"attempt {number} of {retries + 1}" in said.err

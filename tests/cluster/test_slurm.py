"""deploy/slurm.sh with Slurm's two commands pretended and everything else real.

A job begins, is put back into the queue, finishes, and finds itself finished.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysim import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
LONG = ("quickstart", "train.rounds=30", "train.epochs=60", "runtime.per_actor.cpus=0.5")
PROGRAMS = {
    "srun": 'exec "$@"',
    # Slurm ends every process of a job that it puts back.
    "scontrol": "case $1 in show) echo 127.0.0.1 ;;\n"
    "requeue) echo $2 >>requeued; kill -KILL -1 ;; esac",
}


@pytest.fixture
def sbatch(tmp_path):
    """Return a function that starts the script as a job, in namespaces of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("namespaces need root and util-linux")
    for name, body in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("0" * 64)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "HOME": str(tmp_path),
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAYSIM_CACHE": os.environ.get("RAYSIM_CACHE", f"{tmp_path}/cache"),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "here",
        "SLURM_JOB_NUM_NODES": "1",
    }
    started = []

    def start() -> subprocess.Popen[str]:
        line = [ROOT / "tests/cluster/isolate.sh", "bash", ROOT / "deploy/slurm.sh"]
        started.append(
            subprocess.Popen(
                [*line, *LONG, f"output={tmp_path / 'run'}"],
                cwd=tmp_path,
                env=environment,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("_own_cache")
def test_a_job_that_goes_back_into_the_queue_ends_with_the_same_bits(sbatch, tmp_path):
    first, records = sbatch(), tmp_path / "run/rounds.jsonl"
    while not (records.exists() and records.read_bytes().count(b"\n") > 4):
        assert first.poll() is None, first.communicate()[0]
        time.sleep(0.2)
    (shell,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(shell), signal.SIGUSR1)
    first.communicate(timeout=60)
    half = not (tmp_path / "run/result.json").exists()
    said, codes = [], []
    for job in (sbatch, sbatch):
        process = job()
        said.append(process.communicate(timeout=200)[0])
        codes.append(process.returncode)

    assert half
    assert codes == [0, 0], said
    assert (tmp_path / "requeued").read_text() == "4711\n"
    assert "resumed after" in said[0], said[0][-3000:]
    assert "resumed after" not in said[1]
    result = json.loads((tmp_path / "run/result.json").read_text())
    here = run(*LONG, "runtime.kind=local", f"output={tmp_path / 'local'}")
    assert result["digest"] == here.summary["digest"]

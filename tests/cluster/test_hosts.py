"""Three hosts: `ray up`, `raysim submit`, a host unplugged, `raysim fetch`, `ray down`. Root only.

The hosts are namespaces of this machine with an sshd each (hosts.sh); everything else is as on
machines of one's own: deploy/cluster-onprem.yaml, ssh, tokens, a tunnel to the dashboard.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
HOSTS = Path(__file__).with_name("hosts.sh")
BIN = Path(sys.prefix) / "bin"
HOME = pwd.getpwnam("root").pw_dir
NEEDED = ("ip", "ssh", "sshd", "rsync", "pgrep", "nsenter", "unshare")
ADDRESS = "http://127.0.0.1:8265"
RUN = [
    "data.partition={kind: tasks, clients: 24, groups: 3}",
    "train.rounds=12",
    "train.epochs=5",
]
LONG = [*RUN[:1], "train.rounds=60", "train.epochs=60"]
ACTORS = "runtime={actors: 4, per_actor: {cpus: 0.5}, start_timeout_s: 120}"

ARITHMETIC = ("OPENBLAS_", "OMP_", "MKL_", "ATEN_", "ONEDNN_", "NPY_")
"""Beginnings of the variables that choose how numbers are added: hosts get the laptop's."""


def why_not() -> str:
    """Why hosts cannot be made here; empty where they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in NEEDED if shutil.which(name, path=_path()) is None]
    return f"missing commands: {', '.join(missing)}" if missing else ""


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class Lab:
    """Three hosts and an operator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = folder / "storage"
        self.storage.mkdir()
        keep = {str(Path(p).resolve()) for p in (sys.base_prefix, sys.prefix, ROOT, folder)}
        self.environment = {
            **os.environ,
            "PATH": _path(),
            "HOSTS_LAB": str(folder / "lab"),
            "HOSTS_KEEP": ":".join(sorted(keep)),
            "HOSTS_PATH": str(BIN),
        }

    def hosts(self, *arguments: str) -> None:
        subprocess.run([HOSTS, *arguments], env=self.environment, check=True, timeout=120)

    def start(self, *command: str, on: str = "op") -> subprocess.Popen[str]:
        """Start a command on a machine, the operator's by default, from its home."""
        settings = ["env", "-C", HOME, "RAY_AUTH_MODE=token", "RAY_UP_enable_autoscaler_v2=0"]
        settings += ["RAY_USAGE_STATS_ENABLED=0", "PYTHONUNBUFFERED=1"]
        return subprocess.Popen(
            [HOSTS, "sh", on, *settings, *command],
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *command: str, timeout: float = 300, on: str = "op") -> str:
        """Run a command on a machine; return what it said."""
        process = self.start(*command, on=on)
        said, _ = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"{command}: {said[-4000:]}"
        return said

    def cluster_file(self) -> str:
        """Write our on-prem file for these hosts: root, our key, raysim is there already."""
        text = (ROOT / "deploy/cluster-onprem.yaml").read_text()
        text = text.replace("source ~/venv/", f"source {sys.prefix}/")
        as_here = " ".join(f"{k}={v}" for k, v in os.environ.items() if k.startswith(ARITHMETIC))
        text = text.replace(
            "export RAY_AUTH_MODE=token  ", f"export RAY_AUTH_MODE=token {as_here}  "
        )
        cluster = yaml.safe_load(text)
        cluster["auth"] = {"ssh_user": "root", "ssh_private_key": f"{self.folder}/lab/key"}
        cluster["file_mounts"].pop("~/raysim")
        cluster["setup_commands"] = [c for c in cluster["setup_commands"] if "pip" not in c]
        assert any(f"source {sys.prefix}/" in c for c in cluster["setup_commands"])
        path = self.folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(cluster))
        return str(path)


@pytest.fixture(scope="module")
def lab(_own_cache: None) -> Iterator[Lab]:
    """Three hosts with a running Ray cluster, and a tunnel to its dashboard."""
    if reason := why_not():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="rs-hosts"))
    lab = Lab(folder)
    tunnel = None
    try:
        lab.hosts("up", "3")
        lab.run("ray", "get-auth-token", "--generate")
        lab.run("chmod", "600", f"{HOME}/.ray/auth_token")
        lab.run("ray", "up", "-y", "--no-config-cache", lab.cluster_file())
        ssh = ["ssh", "-i", f"{folder}/lab/key", "-o", "StrictHostKeyChecking=no"]
        tunnel = lab.start(*ssh, "-N", "-L", "8265:127.0.0.1:8265", "root@10.77.0.10")
        _wait_for_nodes(lab, 3)
        yield lab
    finally:
        if tunnel is not None:
            tunnel.kill()
        lab.hosts("down")
        shutil.rmtree(folder, ignore_errors=True)


COUNT = """
import logging, ray
ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
print("NODES", sum(node["Alive"] for node in ray.nodes()))
"""


def _wait_for_nodes(lab: Lab, count: int) -> None:
    said = ""
    for _ in range(60):
        said = lab.run("python", "-c", COUNT, on="h0")
        if f"NODES {count}" in said:
            return
        time.sleep(2)
    pytest.fail(f"the workers did not join: {said[-3000:]}")


@pytest.fixture(scope="module")
def laptop(_own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives the digests of the same config in this process."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    def digest(overrides: list[str]) -> Any:
        folder = tmp_path_factory.mktemp("laptop")
        own = ["runtime.kind=local", f"output={folder}/run"]
        config = load_config("quickstart", [*overrides, *own])
        return Experiment(config).run().summary["digest"]

    return digest


FINGERPRINTS = """
import logging, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
from raysim.runtime.numerics import numeric_fingerprint
ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
ask = ray.remote(num_cpus=0)(numeric_fingerprint)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
refs = [ask.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
print("FOUND", *ray.get(refs))
"""


def test_the_hosts_calculate_as_the_laptop_does(lab):
    from raysim.runtime.numerics import numeric_fingerprint

    said = lab.run("python", "-c", FINGERPRINTS, on="h0")

    (found,) = [line for line in said.splitlines() if line.startswith("FOUND ")]
    assert found.split()[1:] == [numeric_fingerprint()] * 3


def submit(lab: Lab, name: str, overrides: list[str]) -> list[str]:
    storage = ["--address", ADDRESS, "--storage", str(lab.storage), "--follow"]
    return ["raysim", "submit", "quickstart", *overrides, ACTORS, f"name={name}", *storage]


def fetched(lab: Lab, said: str, name: str) -> dict[str, Any]:
    """Bring a run home by the job id that ``submit`` printed; return its result."""
    job = re.search(rf"\b{name}-[0-9a-f]{{8}}\b", said)
    assert job, said[-3000:]
    home = f"{lab.folder}/{name}"
    lab.run("raysim", "fetch", job[0], "--address", ADDRESS, "--to", home)
    result: dict[str, Any] = json.loads(next(Path(home).rglob("result.json")).read_text())
    return result


def actors_of(lab: Lab, folder: str) -> set[str]:
    path = next((lab.folder / folder).rglob("environment.json"))
    return {r["node"] for r in json.loads(path.read_text())["actors"] if r["role"] == "clients"}


def test_a_submitted_run_has_the_bits_of_the_laptop(lab, laptop):
    said = lab.run(*submit(lab, "first", RUN))
    result = fetched(lab, said, "first")

    assert result["digest"] == laptop(RUN)
    assert result["clients"] == 24
    assert actors_of(lab, "first") == {"10.77.0.11", "10.77.0.12"}  # none on the head


def test_a_host_unplugged_for_twenty_seconds_changes_nothing(lab, laptop):
    job = lab.start(*submit(lab, "second", LONG))
    said = ""
    for line in job.stdout:
        said += line
        if line.startswith("train 5/60"):
            break
    assert "train 5/60" in said, said[-3000:]
    lab.hosts("cut", "h1")
    time.sleep(20)
    assert job.poll() is None, "the job ended before the host came back: make it longer"
    lab.hosts("heal", "h1")
    said += job.communicate(timeout=600)[0]

    assert job.returncode == 0, said[-4000:]
    result = fetched(lab, said, "second")
    print(f"restarts {result['restarts']}")
    assert result["digest"] == laptop(LONG)


NOTICE = """
import subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"TRUE")


server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
sys.exit(subprocess.call([sys.executable, sys.argv[1], "gcp", "--metadata", url]))
"""


def test_a_host_that_is_taken_back_drains_itself(lab):
    watcher = str(ROOT / "deploy/spot_watcher.py")

    said = lab.run("python", "-c", NOTICE, watcher, on="h2")

    assert "the node is drained" in said
    _wait_for_nodes(lab, 2)  # nothing ran there, so that it leaves at once


def test_ray_down_leaves_no_ray_process(lab):
    lab.run("ray", "down", "-y", lab.cluster_file())

    for host in ("h1", "h2"):  # as the head of cluster-onprem.yaml says
        lab.run("ray", "stop", on=host)
    for host in ("h0", "h1", "h2"):
        found = lab.start("pgrep", "-c", "raylet", on=host)
        assert found.communicate()[0].strip() == "0", host

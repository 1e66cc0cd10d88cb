"""Clusters of several raylets, each in a process of its own: the session's Ray never sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

PRELUDE = """
import json, os, sys
import ray
from ray.cluster_utils import Cluster
from raysim.config import load_config
from raysim.data.world import DriverData
from raysim.errors import RaysimError
from raysim.experiment import Experiment, make_federation

HEAD, *WORKERS = json.loads(sys.argv[1])
HOME = os.environ["RAY_TMPDIR"]
cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **HEAD})
workers = [cluster.add_node(**resources) for resources in WORKERS]


def config(folder, *overrides, address=None, **runtime):
    address = cluster.address if address is None else address
    runtime = {"kind": "ray", "address": address, **runtime}
    short = ["train.rounds=6", f"output={HOME}/{folder}", f"runtime={json.dumps(runtime)}"]
    return load_config("quickstart", [*short, *overrides])


def local(*overrides):
    return Experiment(load_config("quickstart", [
        "train.rounds=6", f"output={HOME}/local", "runtime.kind=local", *overrides
    ])).run(force=True).summary["digest"]


def rows(folder):
    return json.load(open(f"{HOME}/{folder}/environment.json"))["actors"]


def tell(**facts):
    print("FACTS " + json.dumps(facts), flush=True)
"""


SOON = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "300",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
"""Ray misses a dead node or head after two seconds or ten instead of fifteen or sixty.

How long one check may take stays as it is: a slow machine does not make a node look dead.
"""


@pytest.fixture(scope="module")
def in_cluster(_own_cache: None) -> Iterator[Callable[..., dict[str, Any]]]:
    """Return a function that runs a script on a new cluster and returns what it told."""
    homes: list[str] = []

    def run(
        nodes: Sequence[dict[str, Any]], script: str, timeout: float = 240, **environment: str
    ) -> dict[str, Any]:
        homes.append(tempfile.mkdtemp(prefix="rs"))  # short: sockets live below it
        shared = {"RAY_TMPDIR": homes[-1], "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "", **SOON}
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(script), json.dumps(nodes)],
            env={**os.environ, **shared, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,  # the raylets die with their parent
        )
        told = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
        assert told, done.stdout[-2000:] + done.stderr[-4000:]
        facts: dict[str, Any] = json.loads(told[-1].removeprefix("FACTS "))
        return facts

    yield run
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)

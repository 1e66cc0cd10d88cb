"""The oldest Ray that pyproject.toml allows: it is installed, and a run on it has the same bits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
SHORT = ("quickstart", "train.rounds=2")

RUN = """
import importlib, json, pkgutil, sys
import ray
import raysim.runtime.ray
from raysim import run

for module in pkgutil.iter_modules(raysim.runtime.ray.__path__):
    importlib.import_module(f"raysim.runtime.ray.{module.name}")
runtime = "runtime={kind: ray, actors: 2, per_actor: {cpus: 0.5}}"
digest = run(*sys.argv[2:], runtime, f"output={sys.argv[1]}").summary["digest"]
print("FACTS " + json.dumps([ray.__version__, digest]))
"""


@pytest.fixture
def floor(tmp_path) -> tuple[str, Path]:
    """The version, and a folder with nothing but that Ray, to be put before all others."""
    found = re.search(r'"ray\[default\]>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert found
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "old"), f"ray~={found[1]}.0"], check=True, timeout=300)
    return found[1], tmp_path / "old"


def test_the_oldest_ray_allowed_runs_to_the_same_bits(floor, tmp_path):
    from raysim import run

    version, folder = floor
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), *SHORT],
        env={**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert told, done.stderr[-4000:]
    ran_on, digest = json.loads(told[0].removeprefix("FACTS "))

    assert ran_on.startswith(f"{version}.")
    here = run(*SHORT, "runtime.kind=local", f"output={tmp_path / 'local'}")
    assert digest == here.summary["digest"]

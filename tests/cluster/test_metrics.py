"""The numbers that Prometheus reads from a node are those of the run's result."""

from __future__ import annotations

import json
import re
import runpy
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
head = runpy.run_path(str(Path(__file__).with_name("isolated_head.py")))["head"]
SCRIPT = """
import json, sys, time, urllib.request
from raysim.config import load_config
from raysim.experiment import Experiment

output, page = sys.argv[1:]
changes = ["train.rounds=3", f"output={output}", "runtime={kind: ray, address: auto, actors: 2}"]
summary = Experiment(load_config("quickstart", changes)).run().summary
planned = sum(1 for _ in open(f"{output}/rounds.jsonl"))
deadline, text = time.time() + 90, ""
while time.time() < deadline:  # the page is made anew every few seconds, while this driver lives
    text = urllib.request.urlopen(page, timeout=10).read().decode()
    done = [l for l in text.splitlines() if l.startswith("ray_raysim_rounds{")]
    if done and float(done[0].split()[-1]) == planned:
        break
    time.sleep(1)
print(json.dumps({"summary": summary, "page": text}))
"""


@pytest.fixture(scope="module")
def seen(head):
    """The result of a run, its records, and the page of its node just after it."""
    output = head.storage / "measured"
    line = (sys.executable, "-c", textwrap.dedent(SCRIPT), output, head.metrics)
    done = head.run(*line)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    records = [json.loads(line) for line in (output / "rounds.jsonl").read_text().splitlines()]
    return told["summary"], records, told["page"]


def value(page: str, metric: str, **tags: str) -> float:
    """Return the one number of a metric with these tags."""
    found = []
    for line in page.splitlines():
        if line.startswith(f"ray_{metric}{{"):
            known = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if known.items() >= tags.items():
                found.append(float(line.split()[-1]))
    assert len(found) == 1, (metric, tags, found)
    return found[0]


def test_the_page_shows_what_the_result_says(seen):
    summary, records, page = seen
    run = {"name": "quickstart", "method": "fb_nll", "seed": "0"}

    assert value(page, "raysim_rounds", **run) == len(records)
    assert value(page, "raysim_rounds_planned", **run) == len(records)
    assert value(page, "raysim_clients", **run) == summary["clients"]
    assert value(page, "raysim_restarts", **run) == summary["restarts"]
    accuracy = summary["accuracy"]["mean"]
    assert value(page, "raysim_accuracy", **run) == pytest.approx(accuracy, rel=1e-6)
    for direction in ("up", "down"):
        assert value(page, "raysim_bytes", direction=direction) == summary["bytes"][direction]


def test_the_page_shows_the_seconds_of_each_stage(seen):
    _, records, page = seen
    stages = {record["stage"] for record in records}

    for stage in stages:
        spent = sum(r["seconds"] for r in records if r["stage"] == stage)
        assert value(page, "raysim_stage_seconds", stage=stage) == pytest.approx(spent, rel=1e-6)
    assert "train" in stages

"""The fixture ``kept_actors``: actors that serve the next run of a test module."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("kept_actors")]
QUICK = ("train.rounds=2", "train.epochs=1")


def pids(result):
    rows = json.loads((result.run_dir / "environment.json").read_text())["actors"]
    return {row["pid"] for row in rows if row["role"] == "clients"}


def test_kept_actors_serve_the_next_run_with_the_same_bits(run_tiny):
    first = run_tiny("fb_nll", base=QUICK, actors=2)

    second = run_tiny("fb_nll", base=QUICK, actors=2)
    other = run_tiny("single", "seed=3", base=QUICK, actors=2)

    assert pids(first) == pids(second) == pids(other)
    assert second.summary["digest"] == first.summary["digest"]
    assert other.summary["digest"] == run_tiny("single", "seed=3", base=QUICK).summary["digest"]


def test_actors_of_another_share_make_way(run_tiny):
    first = run_tiny("single", base=QUICK, actors=2)
    half = "runtime={kind: ray, actors: 2, per_actor: {cpus: 0.5}}"

    second = run_tiny("single", half, base=QUICK)

    assert not pids(first) & pids(second)

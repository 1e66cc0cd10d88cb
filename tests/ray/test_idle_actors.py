"""Actors kept for the next run of the process."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True)
def _no_idle_actors(ray_session):
    from raysim.runtime.ray.idle import end_idle_actors

    yield
    end_idle_actors()


def pids(result):
    rows = json.loads((result.run_dir / "environment.json").read_text())["actors"]
    return {row["pid"] for row in rows if row["role"] == "clients"}


QUICK = ("train.rounds=2", "train.epochs=1")


def test_kept_actors_serve_the_next_run_with_the_same_bits(run_tiny):
    first = run_tiny("fb_nll", base=QUICK, actors=2, keep_actors=True)

    second = run_tiny("fb_nll", base=QUICK, actors=2, keep_actors=True)
    other = run_tiny("single", "seed=3", base=QUICK, actors=2)

    assert pids(first) == pids(second) == pids(other)
    assert second.summary["digest"] == first.summary["digest"]
    assert other.summary["digest"] == run_tiny("single", "seed=3", base=QUICK).summary["digest"]


def test_actors_of_another_share_make_way(run_tiny):
    first = run_tiny("single", base=QUICK, actors=2, keep_actors=True)
    half = "runtime={kind: ray, actors: 2, per_actor: {cpus: 0.5}}"

    second = run_tiny("single", half, base=QUICK)

    assert not pids(first) & pids(second)


def test_a_dead_idle_actor_is_not_used(run_tiny):
    import os
    import signal

    first = run_tiny("single", base=QUICK, actors=1, keep_actors=True)
    os.kill(pids(first).pop(), signal.SIGKILL)

    second = run_tiny("single", base=QUICK, actors=1)

    assert not pids(first) & pids(second)
    assert second.summary["digest"] == first.summary["digest"]

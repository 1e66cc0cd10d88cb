"""The contract: killed actors and interrupted runs end with the bits of an unbroken run."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from raysim.errors import WorkerLost
from raysim.methods import METHODS
from raysim.methods.method import stages_of

SHORT = ["fb_nll"]  # one method per template; the others follow in the long suite
LONG = [m for m in METHODS.names() if m not in SHORT]
OWN_STAGES = ["clipfl", "fedcorr", "fedrn", "ifca_pfl", "rhfl"]
"""Methods that carry values, memory or groups from round to round."""


class KillDuring:
    """Listener that kills a client actor while the call after a given round is running."""

    def __init__(self, folder, after: int, delay_s: float) -> None:
        self.folder, self.after, self.delay_s = folder, after, delay_s
        self.rounds, self.killed = 0, []

    def __call__(self, event) -> None:
        if event.kind != "round":
            return
        self.rounds += 1
        if self.rounds == self.after:
            rows = json.loads((self.folder / "environment.json").read_text())["actors"]
            pid = next(row["pid"] for row in rows if row["role"] == "clients")
            threading.Thread(target=self._kill, args=(pid,), daemon=True).start()

    def _kill(self, pid: int) -> None:
        time.sleep(self.delay_s)
        os.kill(pid, signal.SIGKILL)
        self.killed.append(pid)


class StopAfter:
    """Listener that breaks the run right after a given number of rounds, before their commit."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def __call__(self, event) -> None:
        if event.kind == "round":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


def check_kill(run_tiny, alone, tmp_path, method):
    longer = "train.epochs=6"  # long enough that the kill meets a call in flight
    killer = KillDuring(tmp_path / "killed", after=len(stages(method)), delay_s=0.05)

    broken = run_tiny(method, longer, actors=2, folder="killed", listeners=[killer])

    assert killer.killed
    assert broken.summary["restarts"] >= 1
    assert broken.summary["digest"] == alone(method, longer)["digest"]


def check_resume(run_tiny, alone, method, stop, **where):
    with pytest.raises(KeyboardInterrupt):
        run_tiny(method, folder="stopped", listeners=[StopAfter(stop)], **where)

    resumed = run_tiny(method, folder="stopped", resume=True, **where)

    assert resumed.summary["digest"] == alone(method)["digest"]


def stages(method):
    from raysim.config import load_config

    config = load_config("quickstart", [f"method={method}"])
    return stages_of(config)


@pytest.mark.ray
@pytest.mark.parametrize("method", SHORT)
def test_a_killed_actor_does_not_change_the_bits(run_tiny, alone, ray_session, tmp_path, method):
    check_kill(run_tiny, alone, tmp_path, method)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_resume_from_any_round_gives_the_same_bits(run_tiny, alone, stop):
    check_resume(run_tiny, alone, "fb_nll", stop)


@pytest.mark.parametrize("method", LONG)
def test_every_method_resumes_to_the_same_bits(run_tiny, alone, method):
    check_resume(run_tiny, alone, method, 2)


@pytest.mark.parametrize("method", OWN_STAGES)
def test_what_a_method_carries_between_rounds_survives_a_stop(run_tiny, alone, method):
    check_resume(run_tiny, alone, method, 4)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 5])
@pytest.mark.parametrize("method", OWN_STAGES)
def test_a_method_resumes_from_any_of_its_stages(run_tiny, alone, method, stop):
    check_resume(run_tiny, alone, method, stop)


@pytest.mark.ray
def test_a_run_started_alone_resumes_on_actors(run_tiny, alone, ray_session):
    with pytest.raises(KeyboardInterrupt):
        run_tiny("fb_nll", folder="moved", listeners=[StopAfter(4)])

    resumed = run_tiny("fb_nll", folder="moved", resume=True, actors=3)

    assert resumed.summary["digest"] == alone("fb_nll")["digest"]


def test_commits_every_two_rounds_resume_to_the_same_bits(run_tiny):
    unbroken = run_tiny("fb_nll")
    with pytest.raises(KeyboardInterrupt):
        run_tiny("fb_nll", "checkpoint.every=2", folder="sparse", listeners=[StopAfter(4)])

    resumed = run_tiny("fb_nll", "checkpoint.every=2", folder="sparse", resume=True)

    assert resumed.summary["digest"] == unbroken.summary["digest"]


@pytest.mark.ray
def test_an_actor_that_dies_too_often_ends_the_run_with_advice(run_tiny, ray_session, tmp_path):
    killer = KillDuring(tmp_path / "hopeless", after=2, delay_s=0.05)

    with pytest.raises(WorkerLost, match=r"runtime\.max_restarts is 0.*--resume"):
        run_tiny(
            "fb_nll",
            "train.epochs=6",
            "runtime={kind: ray, actors: 2, max_restarts: 0}",
            folder="hopeless",
            listeners=[killer],
        )


@pytest.mark.ray
def test_a_killed_parameter_server_does_not_change_the_bits(run_tiny, ray_session, tmp_path):
    unbroken = run_tiny("fb_nll")

    def kill_server(event) -> None:
        if event.kind == "commit" and event.round == 3:
            rows = json.loads((tmp_path / "served" / "environment.json").read_text())["actors"]
            os.kill(next(row["pid"] for row in rows if row["role"] == "server"), signal.SIGKILL)

    broken = run_tiny("fb_nll", actors=2, folder="served", listeners=[kill_server])

    assert broken.summary["restarts"] == 1
    assert broken.summary["digest"] == unbroken.summary["digest"]


# The last of the module: the actors it keeps would serve the tests that follow.
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("method", LONG)
def test_a_killed_actor_does_not_change_any_method(run_tiny, alone, kept_actors, tmp_path, method):
    check_kill(run_tiny, alone, tmp_path, method)

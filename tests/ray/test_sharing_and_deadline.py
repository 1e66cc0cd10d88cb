"""Work of a round moves to idle actors; actors past the deadline are left behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import ray
from ray import cloudpickle

from raysim.errors import ConfigError
from raysim.methods import method
from raysim.protocols import Contribution, stacked
from raysim.runtime.cohort import Call
from raysim.storage.checkpoint import tree_digest

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this file


def one_by_one(clients, memories, arguments):
    return None


def where_am_i(client, memory, arguments):
    return memory, os.getpid()


def remember(client, memory, arguments):
    seen = np.append(memory.get("seen", np.empty(0)), arguments["value"] * (client.id + 1))
    return {"seen": seen}, seen.tolist()


@stacked(one_by_one)
def send_memory(client, memory, arguments):
    rng = np.random.default_rng(client.id)
    tree = {"w": (rng.normal(size=50) + memory.get("seen", np.zeros(1)).sum()).astype(np.float32)}
    return memory, Contribution(tree, 1.0 + client.id, reply=os.getpid())


@stacked(one_by_one)
def hang(client, memory, arguments):
    """Client ``who`` hangs the first time, when the others are done."""
    marker = Path(arguments["marker"])
    if client.id == arguments["who"] and not marker.exists():
        marker.touch()
        time.sleep(600)
    return memory, Contribution({"w": np.full(3, client.id, np.float32)}, 1.0, reply=client.id)


@dataclass(frozen=True)
class OwnStep:
    """A task like that of a method with a local step of its own."""

    stateless: bool = True
    __name__: ClassVar[str] = "OwnStep"

    def __call__(self, client, memory, arguments):
        task = hang if "marker" in arguments else send_memory
        return task(client, memory, arguments)


def at_home_of(federation, client):
    homes = federation.map(where_am_i)
    return [k for k in homes if homes[k] == homes[client]]


@pytest.mark.parametrize("task", [send_memory, OwnStep()])
def test_a_round_whose_clients_live_on_one_actor_is_shared_with_the_other(federate, local, task):
    federation = federate(actors=2)
    for one in (federation, local):
        one.map(remember, value=1.5)
    clients = at_home_of(federation, 0)
    assert len(clients) > 1
    groups = {k: k % 2 for k in clients}

    ours = federation.reduce(task, groups=groups)
    theirs = local.reduce(task, groups=groups)

    assert len(set(ours.replies.values())) == 2  # both processes worked
    for g, result in theirs.groups.items():
        assert tree_digest(federation.get(ours.groups[g].mean)) == tree_digest(
            local.get(result.mean)
        )


def test_guests_keep_their_home_and_memory(federate, local):
    federation = federate(actors=2)
    homes = federation.map(where_am_i)
    for one in (federation, local):
        one.map(remember, value=1.0)
    federation.reduce(send_memory, groups=dict.fromkeys(at_home_of(federation, 0), 0))

    assert federation.map(where_am_i) == homes
    assert federation.map(remember, value=2.0) == local.map(remember, value=2.0)


@pytest.mark.parametrize("client", [0, 1])
def test_a_home_that_dies_before_it_lends_costs_its_own_rebuilding_only(federate, local, client):
    federation = federate(actors=2)
    for one in (federation, local):
        one.map(remember, value=1.5)
    clients = at_home_of(federation, client)
    groups = dict.fromkeys(clients, 0)
    os.kill(federation.map(where_am_i, on=[clients[0]])[clients[0]], signal.SIGKILL)

    ours = federation.reduce(send_memory, groups=groups)
    theirs = local.reduce(send_memory, groups=groups)

    assert federation.restarts == 1
    assert tree_digest(federation.get(ours.groups[0].mean)) == tree_digest(
        local.get(theirs.groups[0].mean)
    )


def test_memory_goes_back_under_an_actor_that_hangs(federate, tmp_path):
    federation = federate(actors=2, round_deadline_s=1.0, quorum=0.2)
    federation.map(remember, value=1.0)
    manifest = federation.commit(str(tmp_path), {})
    federation.map(remember, value=2.0)
    slow = Call(hang, (0,), {"marker": str(tmp_path / "slow"), "who": 0}, {}, number=10**6)
    host = federation._hosts.home[0]
    federation._clients._submit(host, slow, 1)  # as if its round had been given up

    federation.restore(str(tmp_path), manifest)

    assert federation.map(remember, value=3.0)[0] == [1.0, 3.0]


def test_a_call_that_reaches_an_actor_twice_counts_once(federate):
    federation = federate(actors=1)
    federation.map(remember, value=1.0)
    actor = federation._hosts.all[0].actor
    twice = Call(remember, (0, 1), {"value": 2.0}, {}, number=1000)

    first, again = ray.get([actor.run.remote(twice, 1) for _ in range(2)])

    assert first == again
    assert federation.map is not None
    late = Call(remember, (0, 1), {"value": 9.0}, {}, number=999)
    with pytest.raises(ray.exceptions.RayTaskError, match="call 999 came after call 1000"):
        ray.get(actor.run.remote(late, 1))
    after = Call(remember, (0,), {"value": 0.0}, {}, number=1001)
    assert ray.get(actor.run.remote(after, 1))[0] == {0: [1.0, 2.0, 0.0]}


@pytest.mark.parametrize("task", [hang, OwnStep()])
def test_a_round_goes_on_without_an_actor_past_the_deadline(federate, tmp_path, task):
    federation = federate(actors=2, round_deadline_s=1.0, quorum=0.2)
    federation.map(remember, value=1.0)
    groups = dict.fromkeys(range(5), 0)
    arguments = {"marker": str(tmp_path / "slow"), "who": 3}

    first = federation.reduce(task, groups=groups, **arguments)
    late = sorted(federation.late)
    second = federation.reduce(task, groups=groups, **arguments)

    assert 3 in late
    assert sorted([*first.replies, *late]) == [0, 1, 2, 3, 4]
    weights = federation.get(first.groups[0].mean)["w"]
    assert weights == pytest.approx(np.mean(list(first.replies)))
    assert list(second.replies) == [0, 1, 2, 3, 4]  # the actor is back, its memory too
    assert federation.map(remember, value=2.0)[3] == [4.0, 8.0]


def test_a_task_that_may_change_memory_is_refused_where_there_is_a_deadline(federate):
    federation = federate(actors=1, round_deadline_s=1.0, quorum=0.2)

    with pytest.raises(ConfigError, match=r"round_deadline_s is 1, but OwnStep does not say"):
        federation.reduce(OwnStep(stateless=False), groups={0: 0})


def test_fewer_answers_than_the_quorum_are_waited_for(federate, tmp_path):
    federation = federate(actors=2, round_deadline_s=0.2, quorum=0.9)
    groups = dict.fromkeys(range(5), 0)

    reduced = federation.reduce(_slow_for_all, groups=groups)

    assert list(reduced.replies) == [0, 1, 2, 3, 4]
    assert federation.late == []


@stacked(one_by_one)
def _slow_for_all(client, memory, arguments):
    time.sleep(0.5)
    return memory, Contribution({"w": np.zeros(1, np.float32)}, 1.0)


def test_a_group_whose_clients_are_all_late_keeps_its_model(run_tiny, ray_session, tmp_path):
    import raysim.steps.group_training as base
    from raysim.steps.local_training import train_task

    marker = str(tmp_path / "slow")

    @stacked(one_by_one)
    def slow_task(client, memory, arguments):
        if client.id == 0 and not os.path.exists(marker):
            open(marker, "w").close()
            time.sleep(600)
        return train_task(client, memory, arguments)

    before, base.train_task = base.train_task, slow_task
    try:
        runtime = "runtime={kind: ray, actors: 3, round_deadline_s: 4, quorum: 0.3}"
        result = run_tiny("local_only", runtime)
    finally:
        base.train_task = before

    records = [r for r in _records(result) if r["stage"] == "train"]
    late = [r["late"] for r in records if "late" in r]
    assert len(late) == 1
    assert 0 in late[0]
    assert len(records[-1]["per_client"]) == result.summary["clients"]


@dataclass(frozen=True)
class SlowTask:
    """A task under which client 0 hangs the first time."""

    task: Any
    marker: str
    __name__: ClassVar[str] = "SlowTask"

    @property
    def stateless(self):
        return self.task.stateless

    def __call__(self, client, memory, arguments):
        if client.id == 0 and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            time.sleep(600)
        return self.task(client, memory, arguments)


def test_a_method_with_a_local_step_of_its_own_goes_on_without_late_clients(
    run_tiny, ray_session, tmp_path, monkeypatch
):
    train, marker = method.train_groups_by, str(tmp_path / "slow")
    slow = lambda task, *given, **named: train(SlowTask(task, marker), *given, **named)  # noqa: E731
    monkeypatch.setattr(method, "train_groups_by", slow)

    runtime = "runtime={kind: ray, actors: 3, round_deadline_s: 4, quorum: 0.3}"
    result = run_tiny("co_teaching", runtime)

    late = [r["late"] for r in _records(result) if "late" in r]
    assert len(late) == 1
    assert 0 in late[0]


def test_a_method_whose_clients_remember_is_refused_before_anything_starts(run_tiny, tmp_path):
    runtime = "runtime={kind: auto, round_deadline_s: 4, quorum: 0.3}"

    with pytest.raises(ConfigError, match=r"round_deadline_s is 4.0, but clients of selfie keep"):
        run_tiny("selfie", runtime, folder="refused")
    assert not (tmp_path / "refused").exists()


def _records(result):
    import json

    lines = (result.run_dir / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]

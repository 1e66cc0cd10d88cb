"""Killed actors: memory comes back from the commit plus replay, and nothing counts twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError

from raysim.protocols import Contribution, stateless
from raysim.runtime.ray import client_actors, hosts
from raysim.runtime.ray.hosts import Hosts
from raysim.runtime.ray.seats import Seats
from raysim.storage.checkpoint import tree_digest

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this file
BIG = 300_000  # float32 values: far above what Ray sends inside a message


def where_am_i(client, memory, arguments):
    return memory, os.getpid()


def own_pid():
    return os.getpid()


def remember(client, memory, arguments):
    """Append to the memory; client ``who`` hangs until killed unless its marker exists."""
    marker = arguments.get("marker")
    if marker and client.id == arguments["who"] and not Path(marker).exists():
        Path(marker).touch()
        time.sleep(600)
    seen = np.append(memory.get("seen", np.empty(0)), arguments["value"] * (client.id + 1))
    return {"seen": seen}, seen.tolist()


def contribute(client, memory, arguments):
    values = np.random.default_rng(client.id).normal(size=BIG).astype(np.float32)
    return memory, Contribution({"w": values}, 1.0)


@stateless
def send_memory(client, memory, arguments):
    return memory, Contribution({"w": memory["seen"] + client.id}, 1.0 + client.id)


def hang_once(marker):
    if not Path(marker).exists():
        Path(marker).touch()
        time.sleep(600)
    return "done"


def kill(federation, client=0):
    """Kill the actor of a client; return when its process is gone."""
    pid = federation.map(where_am_i, on=[client])[client]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def kill_when(marker, pid):
    """Kill a process as soon as a file appears."""
    while not marker.exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def three_calls(federation):
    """What three calls leave behind where nothing is lost."""
    return [federation.map(remember, value=value) for value in (1.0, 2.0, 3.0)][-1]


@pytest.mark.parametrize("commits", [(), (1.0,), (1.0, 2.0)], ids=["never", "first", "each"])
def test_memory_survives_kills_between_calls(federate, local, tmp_path, commits):
    federation = federate()
    for value in (1.0, 2.0, 3.0):
        replies = federation.map(remember, value=value)
        if value in commits:
            federation.commit(str(tmp_path), {})
        kill(federation)

    assert replies == three_calls(local)
    assert replies[0] == [1.0, 2.0, 3.0]  # nothing lost, nothing twice
    assert federation.restarts == 2  # nobody was asked after the third kill


def test_a_call_in_flight_when_its_actor_dies_counts_once(federate, local, tmp_path):
    federation = federate()
    federation.map(remember, value=1.0)
    federation.commit(str(tmp_path), {})
    federation.map(remember, value=2.0)
    pids, marker = federation.map(where_am_i), tmp_path / "in flight"
    last = max(k for k in pids if list(pids.values()).count(pids[k]) > 1)  # others ran before it
    killer = threading.Thread(target=kill_when, args=(marker, pids[last]))
    killer.start()

    replies = federation.map(remember, value=3.0, marker=str(marker), who=last)

    killer.join()
    assert replies == three_calls(local)
    assert federation.restarts == 1


@pytest.fixture
def no_room(monkeypatch):
    """As if the place of an actor that died were gone with its node, and no other were free."""
    monkeypatch.setattr(hosts, "SETTLE_S", 0.0)
    monkeypatch.setattr(Seats, "placed", lambda self, seats: {})


def test_clients_of_an_actor_without_a_place_go_on_elsewhere(federate, local, tmp_path, no_room):
    federation = federate(actors=3)
    federation.map(remember, value=1.0)
    federation.commit(str(tmp_path), {})
    federation.map(remember, value=2.0)
    kill(federation, client=2)

    assert federation.map(remember, value=3.0) == three_calls(local)
    assert federation.unsettled  # a commit should come soon
    federation.commit(str(tmp_path), {})
    federation.settle(str(tmp_path), {}, {})
    kill(federation, client=0)  # what was adopted is committed by who adopted it

    assert federation.map(remember, value=4.0) == local.map(remember, value=4.0)
    assert {row["clients"] for row in federation.describe() if row["role"] == "clients"} == {5}


def test_a_call_in_flight_goes_to_who_adopts_its_clients(federate, local, tmp_path, no_room):
    federation = federate(actors=2)
    federation.map(remember, value=1.0)
    federation.map(remember, value=2.0)
    marker = tmp_path / "in flight"
    pid = federation.map(where_am_i)[4]
    killer = threading.Thread(target=kill_when, args=(marker, pid))
    killer.start()

    replies = federation.map(remember, value=3.0, marker=str(marker), who=4)

    killer.join()
    assert replies == three_calls(local)
    assert set(federation.map(where_am_i).values()) & {pid} == set()


def test_an_adopter_that_is_dead_too_passes_the_clients_on(federate, local, no_room):
    federation = federate(actors=3)
    federation.map(remember, value=1.0)
    federation.map(remember, value=2.0)
    kill(federation, client=0)
    kill(federation, client=2)

    assert federation.map(remember, value=3.0) == three_calls(local)
    assert federation.restarts == 2


def test_an_adopter_out_of_reach_is_asked_again(federate, local, no_room, monkeypatch):
    federation = federate(actors=2)
    federation.map(remember, value=1.0)
    federation.map(remember, value=2.0)
    kill(federation, client=0)
    get, adopt, cut = ray.get, Hosts._adopt, []

    def first_time(self, host, clients):
        ref = adopt(self, host, clients)
        cut.append(ref)
        return ref

    def once_out_of_reach(refs, **options):
        if cut and refs is cut[0]:
            cut[0] = None
            raise ActorUnavailableError("cut off", None)
        return get(refs, **options)

    monkeypatch.setattr(hosts, "AGAIN_S", 0.1)
    monkeypatch.setattr(Hosts, "_adopt", first_time)
    monkeypatch.setattr(ray, "get", once_out_of_reach)

    assert federation.map(remember, value=3.0) == three_calls(local)
    assert len(cut) == 2
    assert federation.restarts == 1


@pytest.mark.parametrize("place", ["kept", "gone"])
def test_a_lender_that_dies_without_work_of_its_own_is_noticed(
    federate, local, request, monkeypatch, place
):
    if place == "gone":
        request.getfixturevalue("no_room")
    federation = federate(actors=2)
    for one in (federation, local):
        one.map(remember, value=1.0)
    kill(federation, client=0)
    worker = federation._hosts.home[0].number ^ 1
    monkeypatch.setattr(client_actors, "share_out", lambda place, *_: dict.fromkeys(place, worker))
    groups = dict.fromkeys(range(5), 0)

    ours, theirs = (one.reduce(send_memory, groups=groups) for one in (federation, local))

    assert federation.restarts == 1
    assert tree_digest(federation.get(ours.groups[0].mean)) == tree_digest(
        local.get(theirs.groups[0].mean)
    )


def test_an_actor_comes_back_when_its_place_does(federate, local, tmp_path, monkeypatch):
    federation = federate(actors=2)
    federation.map(remember, value=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(hosts, "SETTLE_S", 0.0)
        patch.setattr(Seats, "placed", lambda self, seats: {})
        kill(federation)
        federation.map(remember, value=2.0)
    monkeypatch.setattr(hosts, "LOOK_S", 0.0)
    deadline = time.monotonic() + 60
    while len(set(federation.map(where_am_i).values())) < 2 and time.monotonic() < deadline:
        assert federation.commit(str(tmp_path), {})["models"] == {}
        federation.settle(str(tmp_path), {}, {})
        time.sleep(0.2)

    assert len(set(federation.map(where_am_i).values())) == 2
    assert federation.map(remember, value=3.0) == three_calls(local)


def test_a_restored_run_survives_a_kill_before_its_first_commit(federate, local, tmp_path):
    first = federate()
    first.map(remember, value=1.0)
    manifest = first.commit(str(tmp_path), {})
    first.close()

    second = federate(actors=3)
    second.restore(str(tmp_path), manifest)
    kill(second)
    second.map(remember, value=2.0)
    kill(second)

    assert second.map(remember, value=3.0) == three_calls(local)


def test_a_commit_gives_a_lost_actor_its_chances_back(federate, local, tmp_path):
    federation = federate(max_restarts=1)
    for value in (1.0, 2.0, 3.0):
        replies = federation.map(remember, value=value)
        federation.commit(str(tmp_path), {})
        kill(federation)

    assert replies == three_calls(local)


@pytest.mark.parametrize("count", [3, 40])
def test_models_are_committed_even_if_a_writer_dies(federate, local, tmp_path, count, monkeypatch):
    federation = federate(actors=2)
    trees = {f"group/{g}": {"w": np.full(5, g, np.float32)} for g in range(count)}
    kill(federation)
    monkeypatch.setattr(federation._clients, "save", lambda *_: [])  # which would notice

    ours, theirs = (
        one.commit(str(tmp_path / where), {name: one.put(tree) for name, tree in trees.items()})
        for one, where in ((federation, "ours"), (local, "theirs"))
    )

    assert ours["models"] == theirs["models"]
    handles = federation.restore(str(tmp_path / "ours"), ours)
    assert {name: federation.get(h)["w"][0] for name, h in handles.items()} == {
        name: tree["w"][0] for name, tree in trees.items()
    }


def test_a_killed_server_changes_no_sum_and_loses_no_model(federate):
    federation = federate(actors=2)
    groups = dict.fromkeys(range(5), 0)
    before = federation.reduce(contribute, groups=groups).groups[0].mean

    os.kill(federation.serve(own_pid), signal.SIGKILL)
    after = federation.reduce(contribute, groups=groups).groups[0].mean

    assert federation.restarts == 1
    assert tree_digest(federation.get(after)) == tree_digest(federation.get(before))


def test_a_server_killed_while_it_works_does_the_work_again(federate, tmp_path):
    federation, marker = federate(actors=1), tmp_path / "at work"
    killer = threading.Thread(target=kill_when, args=(marker, federation.serve(own_pid)))
    killer.start()

    assert federation.serve(hang_once, marker=str(marker)) == "done"

    killer.join()
    assert federation.restarts == 1


def test_rows_name_the_rebuilt_actor_not_the_dead_one(federate):
    federation = federate(actors=2)
    kill(federation)
    pids = set(federation.map(where_am_i).values())

    assert {row["pid"] for row in federation.describe() if row["role"] == "clients"} == pids


def test_a_run_after_an_ended_ray_session_has_the_same_bits(tmp_path):
    script = """
import sys
import ray
from raysim.config import load_config
from raysim.experiment import Experiment

for folder in ("first", "second"):
    output = f"output={sys.argv[1]}/{folder}"
    runtime = "runtime={kind: ray, actors: 1}"
    config = load_config("quickstart", ["train.rounds=1", output, runtime])
    print(Experiment(config).run().summary["digest"]["records"])
    ray.shutdown()
"""
    line = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=180)

    assert done.returncode == 0, done.stderr[-2000:]
    assert len(set(done.stdout.split())) == 1

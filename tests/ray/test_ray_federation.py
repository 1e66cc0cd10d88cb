"""``RayFederation`` by itself: order, exact sums, handles, errors, losses. No learning here."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import ray
from ray import cloudpickle

from raysim.errors import ClientFailed, ConfigError, DataError, EnvironmentNotFit, RaysimError
from raysim.protocols import ClientRecord, Contribution
from raysim.runtime.checkpoint import tree_digest
from raysim.runtime.local import LocalFederation
from raysim.runtime.placement import RuntimeSettings, ShareSettings
from raysim.runtime.ray.client_actor import RayHandle
from raysim.runtime.ray.federation import RayFederation

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this file
SIZES = (5, 1, 9, 3, 7)
BIG = 300_000  # float32 values: far above what Ray sends inside a message


@dataclass(frozen=True)
class NoWorld:
    """A world without images."""

    missing: str = ""

    def open(self):
        if self.missing:
            raise DataError(f"data.root is {self.missing}, but nothing is there; correct data.root")
        return self


def records():
    return [
        ClientRecord(id=k, sample_ids=np.arange(n), labels=np.full(n, k))
        for k, n in enumerate(SIZES)
    ]


@pytest.fixture
def federate(ray_session):
    """Return a function that makes a federation of five clients; it is closed afterwards."""
    with contextlib.ExitStack() as stack:

        def make(actors=2, servers=1, cpus=0.5, **runtime):
            share = ShareSettings(cpus=cpus)
            runtime = RuntimeSettings(
                kind="ray", actors=actors, servers=servers, per_actor=share, **runtime
            )
            federation = RayFederation(records(), NoWorld(), runtime)
            stack.callback(federation.close)
            return federation

        yield make


# ---- tasks ---------------------------------------------------------------------------------


def late_first(client, memory, arguments):
    time.sleep(0.02 * (len(SIZES) - client.id))
    return memory, (client.id, len(client.sample_ids))


def where_am_i(client, memory, arguments):
    return memory, os.getpid()


def contribute(client, memory, arguments):
    rng = np.random.default_rng(client.id)
    tree = {"w": rng.normal(size=arguments["size"]).astype(np.float32), "b": rng.normal(size=3)}
    weight = float(client.id + 1) / 3
    return memory, Contribution(tree, weight, {"group": arguments["group"]})


def add_up(client, memory, arguments):
    return memory, float(arguments["tree"]["a"].sum() + arguments["parts"][1]["a"].sum())


def fail(client, memory, arguments):
    if client.id == arguments["who"]:
        raise arguments["error"]
    return memory, None


def remember(client, memory, arguments):
    """Append to the memory; the first time a marker is named, hang there until killed."""
    marker = arguments.get("marker")
    if marker and client.id == arguments["who"] and not Path(marker).exists():
        Path(marker).touch()
        time.sleep(600)
    seen = np.append(memory.get("seen", np.empty(0)), arguments["value"] * (client.id + 1))
    return {"seen": seen}, seen.tolist()


def own_pid():
    return os.getpid()


def total_of(tree, scale):
    return float(tree["a"].sum() * scale)


def divide_by_zero():
    return 1 // 0


# ---- order and sums ------------------------------------------------------------------------


def test_replies_come_in_order_of_client_id_whatever_finishes_first(federate):
    federation = federate(actors=3)

    everyone = federation.map(late_first)
    some = federation.map(late_first, on=[4, 0, 2])

    assert list(everyone.items()) == [(k, (k, n)) for k, n in enumerate(SIZES)]
    assert list(some) == [0, 2, 4]


def test_a_map_is_one_call_per_actor(federate, monkeypatch):
    federation = federate(actors=2)
    sent = []
    submit = RayFederation._submit

    def count(self, cohort, call):
        sent.append(cohort)
        return submit(self, cohort, call)

    monkeypatch.setattr(RayFederation, "_submit", count)
    homes = federation.map(where_am_i)
    assert sorted(sent) == [0, 1]

    sent.clear()
    one_home = [k for k in homes if homes[k] == homes[0]]
    federation.map(where_am_i, on=one_home)
    assert len(sent) == 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_reduce_has_the_bits_of_the_local_federation(federate, servers):
    local = LocalFederation(records(), NoWorld())
    groups = {0: 0, 1: 4, 2: 0, 4: 1}  # client 3 does not take part, groups are sparse

    ours = federate(actors=3, servers=servers).reduce(contribute, groups=groups, size=17)
    theirs = local.reduce(contribute, groups=groups, size=17)

    assert list(ours.groups) == [0, 1, 4]
    assert ours.replies == theirs.replies == {k: {"group": g} for k, g in groups.items()}
    for g, result in ours.groups.items():
        assert result.weight == theirs.groups[g].weight
        mean = ray.get(result.mean.ref)
        assert tree_digest(mean) == tree_digest(local.get(theirs.groups[g].mean))


def test_models_do_not_pass_through_the_driver_in_a_reduce(federate, monkeypatch):
    federation = federate(actors=2)
    seen = []
    get = ray.get

    def watch(*arguments, **options):
        value = get(*arguments, **options)
        seen.append(len(cloudpickle.dumps(value)))
        return value

    monkeypatch.setattr(ray, "get", watch)
    reduced = federation.reduce(contribute, groups=dict.fromkeys(range(5), 0), size=BIG)

    assert isinstance(reduced.groups[0].mean, RayHandle)
    assert reduced.groups[0].mean.nbytes == BIG * 4 + 3 * 4
    assert 0 < sum(seen) < 10_000


# ---- handles and servers -------------------------------------------------------------------


def test_a_stored_tree_reaches_tasks_by_handle_wherever_it_is_nested(federate):
    federation = federate()
    tree = {"a": np.arange(4.0)}
    handle = federation.put(tree)

    each = {k: {"parts": [None, handle]} for k in federation.clients}
    replies = federation.map(add_up, each=each, tree=handle)

    assert replies == dict.fromkeys(range(5), 12.0)
    assert handle.nbytes == 32
    assert tree_digest(federation.get(handle)) == tree_digest(tree)


def test_serve_runs_beside_the_server_that_is_asked(federate):
    federation = federate(actors=1, servers=2)
    pids = [row["pid"] for row in federation.describe() if row["role"] == "server"]
    handle = federation.put({"a": np.arange(4.0)})

    assert [federation.serve(own_pid, server=s) for s in range(3)] == [pids[0], pids[1], pids[0]]
    assert federation.serve(total_of, tree=handle, scale=2) == 12.0


def test_a_servers_error_is_ours_and_names_its_task(federate):
    federation = federate(actors=1)
    federation.where = "correct round 1/1"

    with pytest.raises(RaysimError, match=r"correct round 1/1.*divide_by_zero.*ZeroDivisionError"):
        federation.serve(divide_by_zero)


# ---- errors of clients ---------------------------------------------------------------------


def test_a_failing_client_is_named_with_task_round_and_traceback(federate):
    federation = federate()
    federation.where = "train round 2/3"

    with pytest.raises(ClientFailed) as caught:
        federation.map(fail, who=3, error=KeyError("labels"))

    wrong = caught.value
    assert (wrong.client, wrong.task, wrong.where) == (3, "fail", "train round 2/3")
    assert str(wrong).startswith("client 3 failed in train round 2/3 while running fail: KeyError")
    assert 'raise arguments["error"]' in wrong.trace or "in fail" in wrong.trace


def test_an_error_of_ours_comes_back_as_it_was(federate):
    with pytest.raises(ConfigError, match=r"^train\.lr is wrong$"):
        federate().map(fail, who=1, error=ConfigError("train.lr is wrong"))


def test_a_reduce_without_a_contribution_says_where(federate):
    federation = federate()
    federation.where = "train round 1/3"

    with pytest.raises(ClientFailed, match=r"client 0 failed in train round 1/3.*Contribution"):
        federation.reduce(where_am_i, groups={0: 0})


def test_an_actor_that_cannot_open_its_data_reports_that_reason(ray_session):
    runtime = RuntimeSettings(kind="ray", actors=1)

    with pytest.raises(RaysimError, match=r"data\.root is nowhere.*correct data\.root") as caught:
        RayFederation(records(), NoWorld(missing="nowhere"), runtime)

    assert "Traceback" not in str(caught.value)


# ---- losses --------------------------------------------------------------------------------


def kill(federation, client=0):
    """Kill the actor of a client; return when Ray knows."""
    pid = federation.map(where_am_i, on=[client])[client]
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def local_story(tmp_path, commits):
    """What three calls leave behind in the local federation."""
    local = LocalFederation(records(), NoWorld())
    for value in (1.0, 2.0, 3.0):
        replies = local.map(remember, value=value)
        if value in commits:
            local.commit(str(tmp_path / "local"), {})
    return replies


@pytest.mark.parametrize("commits", [(), (1.0,), (1.0, 2.0)])
def test_memory_comes_back_from_commit_and_replay_after_a_kill_between_calls(
    federate, tmp_path, commits
):
    federation = federate()
    for value in (1.0, 2.0, 3.0):
        replies = federation.map(remember, value=value)
        if value in commits:
            federation.commit(str(tmp_path / "ray"), {})
        kill(federation)

    assert federation.map(remember, on=[], value=0.0) == {}
    assert replies == local_story(tmp_path, commits)
    assert replies[0] == [1.0, 2.0, 3.0]  # nothing lost, nothing twice
    assert federation.restarts == 2


def test_a_call_in_flight_when_its_actor_dies_counts_once(federate, tmp_path):
    federation = federate()
    federation.map(remember, value=1.0)
    federation.commit(str(tmp_path / "ray"), {})
    federation.map(remember, value=2.0)
    pids, marker = federation.map(where_am_i), tmp_path / "in flight"
    last = max(k for k in pids if pids[k] == pids[0])  # the clients before it are done by then
    killer = threading.Thread(target=kill_when, args=(marker, pids[last]))
    killer.start()

    replies = federation.map(remember, value=3.0, marker=str(marker), who=last)

    killer.join()
    assert last > 0
    assert replies == local_story(tmp_path, (1.0,))
    assert federation.restarts == 1


def kill_when(marker, pid):
    while not marker.exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)


def test_a_commit_gives_a_lost_actor_its_chances_back(federate, tmp_path):
    federation = federate(max_restarts=1)
    for value in (1.0, 2.0, 3.0):
        replies = federation.map(remember, value=value)
        federation.commit(str(tmp_path / "ray"), {})
        kill(federation)

    assert replies == local_story(tmp_path, ())


def test_a_killed_server_changes_no_sum_and_loses_no_model(federate):
    federation = federate(actors=2)
    groups = dict.fromkeys(range(5), 0)
    before = federation.reduce(contribute, groups=groups, size=BIG).groups[0].mean

    os.kill(federation.serve(own_pid), signal.SIGKILL)
    after = federation.reduce(contribute, groups=groups, size=BIG).groups[0].mean

    assert federation.restarts == 1
    assert tree_digest(federation.get(after)) == tree_digest(federation.get(before))


# ---- starting and ending -------------------------------------------------------------------


def test_rows_say_who_runs_where_with_which_share(federate):
    federation = federate(actors=2, servers=1)
    pids = federation.map(where_am_i)

    rows = federation.describe()
    clients = [row for row in rows if row["role"] == "clients"]

    assert [row["role"] for row in rows] == ["clients", "clients", "server"]
    assert {row["pid"] for row in clients} == set(pids.values())
    assert sum(row["clients"] for row in rows) == len(SIZES)
    assert {row["share"] for row in clients} == {"0.5 CPU"}
    assert len({row["actor"] for row in rows}) == 3
    assert all(row["node"] and row["node_id"] for row in rows)


def test_rows_name_the_rebuilt_actor_not_the_dead_one(federate):
    federation = federate(actors=2)
    kill(federation)
    pids = set(federation.map(where_am_i).values())

    assert {row["pid"] for row in federation.describe() if row["role"] == "clients"} == pids


def test_closing_frees_the_actors_and_leaves_ray_running(federate):
    free = free_cpus(at_least=8)
    federation = federate(actors=4, cpus=1)
    assert free_cpus(at_least=0) == free - 4

    federation.close()
    federation.close()

    assert free_cpus(at_least=free) == free
    assert ray.is_initialized()


def test_actors_that_find_no_free_place_are_refused_with_the_numbers(federate):
    free = free_cpus(at_least=8)
    other_job = ray.remote(Idle).options(num_cpus=free).remote()
    ray.get(other_job.ready.remote())

    with pytest.raises(EnvironmentNotFit) as caught:
        federate(actors=2, cpus=1, start_timeout_s=2.0)

    assert "3 actors did not start within runtime.start_timeout_s = 2 s" in str(caught.value)
    assert "free now: 0 CPUs" in str(caught.value)
    ray.kill(other_job)
    assert free_cpus(at_least=free) == free  # the refused actors do not come up later


class Idle:
    def ready(self):
        return True


def free_cpus(at_least):
    """Wait until other tests' actors have let go of their CPUs."""
    deadline = time.monotonic() + 60
    while True:
        free = ray.available_resources().get("CPU", 0.0)
        if free >= at_least or time.monotonic() > deadline:
            return free
        time.sleep(0.1)

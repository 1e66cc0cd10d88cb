"""``RayFederation`` by itself: order, exact sums, handles, errors, start and end."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import pytest
import ray
from ray import cloudpickle

from raysim.errors import ClientFailed, ConfigError, EnvironmentNotFit, RaysimError
from raysim.protocols import Contribution, Where
from raysim.runtime.ray.client_actors import ClientActors
from raysim.runtime.ray.processes import RayHandle
from raysim.storage.checkpoint import tree_digest

pytestmark = pytest.mark.ray
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this file
BIG = 300_000  # float32 values: far above what Ray sends inside a message


def late_first(client, memory, arguments):
    time.sleep(0.02 * (5 - client.id))
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


def own_pid():
    return os.getpid()


def total_of(tree, scale):
    return float(tree["a"].sum() * scale)


def twice(tree):
    return {"a": tree["a"] * 2}


def divide_by_zero():
    return 1 // 0


# ---- order and sums ------------------------------------------------------------------------


def draw(client, memory, arguments):
    rng = np.random.default_rng(client.id)
    tree = {"w": rng.normal(size=arguments["size"]).astype(np.float32)}
    return memory, Contribution(tree, float(client.id + 1) / 3)


@pytest.mark.parametrize("size", [7, BIG])
def test_kept_trees_have_the_bits_of_the_local_ones_and_pass_no_server(federate, local, size):
    federation = federate(actors=2)
    for server in federation._servers.actors:
        ray.kill(server)

    ours = federation.keep(draw, on=[4, 0, 3], size=size)
    theirs = local.keep(draw, on=[4, 0, 3], size=size)

    assert list(ours) == list(theirs) == [0, 3, 4]
    for k, handle in ours.items():
        assert handle.nbytes == theirs[k].nbytes == 4 * size
        assert tree_digest(federation.get(handle)) == tree_digest(local.get(theirs[k]))


def test_replies_come_in_order_of_client_id_whatever_finishes_first(federate):
    federation = federate(actors=3)

    everyone = federation.map(late_first)
    some = federation.map(late_first, on=[4, 0, 2])

    assert list(everyone.items()) == [
        (0, (0, 5)),
        (1, (1, 1)),
        (2, (2, 9)),
        (3, (3, 3)),
        (4, (4, 7)),
    ]
    assert list(some) == [0, 2, 4]


def test_a_map_is_one_call_per_actor(federate, monkeypatch):
    federation = federate(actors=2)
    sent = []
    submit = ClientActors._submit

    def count(self, host, *arguments):
        sent.append(host.number)
        return submit(self, host, *arguments)

    monkeypatch.setattr(ClientActors, "_submit", count)
    homes = federation.map(where_am_i)
    assert sorted(sent) == [0, 1]

    sent.clear()
    federation.map(where_am_i, on=[k for k in homes if homes[k] == homes[0]])
    assert len(sent) == 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_reduce_has_the_bits_of_the_local_federation(federate, local, servers):
    groups = {0: 0, 1: 4, 2: 0, 4: 1}  # client 3 does not take part, groups are sparse

    ours = federate(actors=3, servers=servers).reduce(contribute, groups=groups, size=17)
    theirs = local.reduce(contribute, groups=groups, size=17)

    assert list(ours.groups) == [0, 1, 4]
    assert ours.replies == theirs.replies == {k: {"group": g} for k, g in groups.items()}
    for g, result in ours.groups.items():
        assert result.weight == theirs.groups[g].weight
        assert tree_digest(ray.get(result.mean.ref)) == tree_digest(
            local.get(theirs.groups[g].mean)
        )


def test_models_do_not_pass_through_the_driver_in_a_reduce(federate, monkeypatch):
    federation = federate(actors=2)
    received = []
    get = ray.get

    def watch(*arguments, **options):
        value = get(*arguments, **options)
        received.append(len(cloudpickle.dumps(value)))
        return value

    monkeypatch.setattr(ray, "get", watch)
    reduced = federation.reduce(contribute, groups=dict.fromkeys(range(5), 0), size=BIG)

    assert isinstance(reduced.groups[0].mean, RayHandle)
    assert reduced.groups[0].mean.nbytes == BIG * 4 + 3 * 4
    assert 0 < sum(received) < BIG / 10


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


def test_a_derived_tree_stays_in_the_store(federate, local, monkeypatch):
    federation = federate(actors=1, servers=2)
    given = federation.put({"a": np.arange(float(BIG))})
    received = []
    get = ray.get

    def watch(*arguments, **options):
        value = get(*arguments, **options)
        received.append(len(cloudpickle.dumps(value)))
        return value

    monkeypatch.setattr(ray, "get", watch)
    doubled = federation.derive(twice, server=1, tree=given)

    assert doubled.nbytes == BIG * 8
    assert sum(received) < BIG / 10
    assert federation.get(doubled)["a"][-1] == 2 * (BIG - 1)
    assert local.get(local.derive(twice, tree=local.put({"a": np.ones(2)})))["a"].tolist() == [2, 2]


@pytest.mark.parametrize("kind", ["local", "ray"])
def test_an_error_beside_a_server_names_task_and_round(federate, local, kind):
    federation = local if kind == "local" else federate(actors=1)
    federation.where = Where("correct", 0, 1)

    with pytest.raises(RaysimError) as caught:
        federation.serve(divide_by_zero)

    assert "divide_by_zero" in str(caught.value)
    assert "correct round 1/1" in str(caught.value)
    assert "ZeroDivisionError: integer division or modulo by zero" in str(caught.value)


# ---- errors of clients ---------------------------------------------------------------------


def test_a_failing_client_is_named_with_task_round_and_traceback(federate):
    federation = federate()
    federation.where = Where("train", 1, 3)

    with pytest.raises(ClientFailed) as caught:
        federation.map(fail, who=3, error=KeyError("labels"))

    wrong = caught.value
    assert (wrong.client, wrong.task, wrong.where) == (3, "fail", Where("train", 1, 3))
    node = federation.describe()[0]["node"]
    place = f"client 3 failed in train round 2/3 on node {node}"
    assert str(wrong).startswith(f"{place} while running fail: KeyError")
    assert "in fail" in wrong.trace


def test_an_error_of_ours_comes_back_as_it_was(federate):
    with pytest.raises(ConfigError, match=r"^train\.lr is wrong$"):
        federate().map(fail, who=1, error=ConfigError("train.lr is wrong"))


def test_a_reduce_without_a_contribution_says_where(federate):
    federation = federate()
    federation.where = Where("train", 0, 3)

    with pytest.raises(ClientFailed, match=r"client 0 failed in train round 1/3.*Contribution"):
        federation.reduce(where_am_i, groups={0: 0})


def test_an_actor_that_cannot_open_its_data_reports_that_reason(federate):
    with pytest.raises(RaysimError, match=r"data\.root is nowhere.*correct data\.root") as caught:
        federate(actors=1, missing="nowhere")

    assert "Traceback" not in str(caught.value)
    assert groups_left() == []


# ---- starting and ending -------------------------------------------------------------------


def test_rows_say_who_runs_where_with_which_share(federate):
    federation = federate(actors=2, servers=1)
    pids = federation.map(where_am_i)

    rows = federation.describe()
    clients = [row for row in rows if row["role"] == "clients"]

    assert [row["role"] for row in rows] == ["clients", "clients", "server", "coordinator"]
    names = [row["name"] for row in rows]
    assert names == ["run/clients-1-3", "run/clients-0,4", "run/server-group-0", "run"]
    assert {row["pid"] for row in clients} == set(pids.values())
    assert sum(row["clients"] for row in rows) == 5
    assert {row["share"] for row in clients} == {"0.5 CPU"}
    assert len({row["actor"] for row in rows}) == 4
    assert all(row["node"] and row["node_id"] for row in rows)


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
        federate(actors=2, cpus=1, queue_timeout_s=2.0)

    assert "room for 2 client actors of 1 CPUs" in str(caught.value)
    assert "not free within runtime.queue_timeout_s = 2 s" in str(caught.value)
    assert "free now: 0 CPUs" in str(caught.value)
    ray.kill(other_job)
    assert groups_left() == []
    assert free_cpus(at_least=free) == free  # the refused actors do not come up later


def groups_left():
    groups = ray.util.placement_group_table().values()
    return [group for group in groups if group["state"] != "REMOVED"]


class Idle:
    def ready(self):
        return True


def free_cpus(at_least):
    """Wait until the actors of other tests have let go of their CPUs."""
    deadline = time.monotonic() + 60
    while True:
        free = ray.available_resources().get("CPU", 0.0)
        if free >= at_least or time.monotonic() > deadline:
            return free
        time.sleep(0.1)

"""All clients in this process, behind the interface that Ray implements too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from raysim.errors import ClientFailed
from raysim.protocols import ClientRecord, Contribution, Handle, Stacked, Where, stacked, stateless
from raysim.runtime.local import LocalFederation
from raysim.storage.checkpoint import read_object, tree_digest


@dataclass(frozen=True)
class Spec:
    """A world that is a word."""

    world: Any = "world"

    def open(self):
        return self.world


def federation(count: int = 4) -> LocalFederation:
    records = [ClientRecord(k, np.arange(k + 1), np.zeros(k + 1, int)) for k in range(count)]
    return LocalFederation(records[::-1], Spec())


def who(client, memory, arguments):
    return memory, (client.id, client.world, len(client.sample_ids))


def total(client, memory, arguments):
    return memory, float(sum(tree["w"].sum() for tree in arguments["models"].values()))


def give(client, memory, arguments):
    value = float(10 * client.id) + arguments.get("add", 0)
    tree = {"w": np.full(2, value, np.float32)}
    return memory, Contribution(tree, arguments.get("weight", 1.0), value)


def remember(client, memory, arguments):
    seen = memory.get("seen", np.zeros(0, int))
    return {"seen": np.append(seen, arguments["round"])}, len(seen) + 1


def recall(client, memory, arguments):
    return memory, memory.get("seen", np.zeros(0, int)).tolist()


def draw(client, memory, arguments):
    assert "group" not in arguments
    tree = {"w": np.random.default_rng(client.id).normal(size=50).astype(np.float32)}
    return memory, Contribution(tree, (client.id + 1) / 3)


def give_all(clients, memories, arguments):
    replies = [draw(client, {}, {})[1] for client in clients]
    tree = {"w": np.stack([reply.tree["w"] for reply in replies])}
    ids, weights = tuple(c.id for c in clients), np.array([reply.weight for reply in replies])
    yield Stacked(ids, (None,) * len(ids), tree, weights)


@stacked(give_all)
def draw_in_stacks(client, memory, arguments):
    return draw(client, memory, arguments)


def ungrouped(client, memory, arguments):
    return draw(client, memory, {})


@pytest.mark.parametrize("task", [draw, draw_in_stacks])
def test_a_kept_tree_has_the_bits_of_a_mean_over_its_client_alone(task):
    made = federation()

    kept = made.keep(task, on=[2, 0, 3])
    means = made.reduce(ungrouped, groups={0: 0, 2: 1, 3: 2}).groups

    assert list(kept) == [0, 2, 3]
    for k, group in ((0, 0), (2, 1), (3, 2)):
        assert tree_digest(made.get(kept[k])) == tree_digest(made.get(means[group].mean))


@stateless
def remember_in_secret(client, memory, arguments):
    return {**memory, "seen": np.zeros(1)}, Contribution({"w": np.zeros(1)}, 1.0)


def test_a_task_that_is_not_as_stateless_as_it_says_is_named():
    with pytest.raises(ClientFailed, match="remember_in_secret: it is declared stateless but"):
        federation().reduce(remember_in_secret, groups={2: 0})


def test_a_keep_needs_contributions():
    with pytest.raises(ClientFailed, match="keep needs a Contribution, got list"):
        federation().keep(recall, on=[1])


def test_clients_are_sorted_whatever_order_they_come_in():
    assert federation().clients == [0, 1, 2, 3]


def test_replies_come_in_order_of_the_client():
    replies = federation().map(who, on=[3, 0, 2])

    assert list(replies.items()) == [
        (0, (0, "world", 1)),
        (2, (2, "world", 3)),
        (3, (3, "world", 4)),
    ]


def test_a_map_runs_on_everyone_by_default_and_on_nobody_if_asked():
    assert list(federation().map(who)) == [0, 1, 2, 3]
    assert federation().map(who, on=[]) == {}


def test_handles_reach_tasks_as_trees():
    one = federation()
    handle = one.put({"w": np.ones(5)})

    replies = one.map(total, models={0: handle}, each={2: {"models": {0: handle, 1: handle}}})

    assert replies == {0: 5.0, 1: 5.0, 2: 10.0, 3: 5.0}


def test_a_handle_knows_its_size_and_gives_its_tree_back():
    one = federation()
    tree = {"w": np.ones(5, np.float32), "b": np.zeros(3)}

    handle = one.put(tree)

    assert isinstance(handle, Handle)
    assert handle.nbytes == 5 * 4 + 3 * 8
    assert tree_digest(one.get(handle)) == tree_digest(tree)


def test_a_stored_tree_does_not_follow_its_source():
    # Ray copies on put; the same bits need the same here.
    one = federation()
    source = np.ones(3)

    handle = one.put({"w": source})
    source += 1

    assert one.get(handle)["w"].tolist() == [1, 1, 1]


def spoil(client, memory, arguments):
    arguments["model"]["w"][0] = 7
    return memory, None


def test_a_task_cannot_change_a_stored_tree():
    # Ray's objects are read-only; a task that writes into one must fail here too.
    one = federation()
    stored = [one.put({"w": np.ones(2)}), one.reduce(give, groups={0: 0}).groups[0].mean]

    for handle in stored:
        with pytest.raises(ClientFailed, match="read-only"):
            one.map(spoil, on=[0], model=handle)


def test_a_reduce_averages_per_group():
    reduced = federation().reduce(give, groups={0: 1, 1: 1, 3: 7})

    assert list(reduced.groups) == [1, 7]
    assert reduced.groups[1].weight == 2.0
    assert reduced.groups[1].mean.tree["w"].tolist() == [5, 5]
    assert reduced.groups[7].mean.tree["w"].tolist() == [30, 30]
    assert reduced.replies == {0: 0.0, 1: 10.0, 3: 30.0}


def test_a_reduce_weighs_contributions():
    each = {0: {"weight": 1.0}, 1: {"weight": 3.0}}

    result = federation().reduce(give, groups={0: 0, 1: 0}, each=each).groups[0]

    assert result.weight == 4.0
    assert result.mean.tree["w"].tolist() == [7.5, 7.5]  # (1 * 0 + 3 * 10) / 4


def test_a_mean_is_a_model_of_the_next_reduce():
    one = federation()
    first = one.reduce(give, groups={0: 0, 1: 0}).groups[0].mean

    assert one.map(total, on=[0], models={0: first}) == {0: 10.0}


def test_a_served_function_gets_its_arguments_resolved():
    one = federation()
    handle = one.put({"w": np.arange(3)})

    assert one.serve(lambda clean, power: clean["w"] ** power, clean=handle, power=2).tolist() == [
        0,
        1,
        4,
    ]


def test_a_failure_says_where_the_run_was():
    one = federation()
    one.where = Where("correct", 0, 1)

    with pytest.raises(
        ClientFailed, match="client 2 failed in correct round 1/1 while running total"
    ):
        one.map(total, on=[2], models=3)


def test_a_commit_holds_memory_and_models(tmp_path):
    one = federation()
    one.map(remember, on=[1, 3], round=0)
    handle = one.put({"w": np.arange(4.0)})

    manifest = one.commit(str(tmp_path), {"group/0": handle, "group/1": handle})

    (digest,) = manifest["memory"]
    assert manifest["memory"][digest] == [1, 3]
    assert set(read_object(tmp_path, digest)) == {"1/seen", "3/seen"}
    assert (
        manifest["models"]["group/0"] == manifest["models"]["group/1"] == tree_digest(handle.tree)
    )


def test_another_federation_goes_on_from_a_commit(tmp_path):
    one, two = federation(), federation()
    one.map(remember, round=0)
    one.commit(str(tmp_path), {})
    one.map(remember, on=[2], round=1)
    manifest = one.commit(str(tmp_path), {"group/0": one.put({"w": np.ones(2)})})
    one.map(remember, round=2)  # after the commit

    models = two.restore(str(tmp_path), manifest)

    assert two.map(recall) == {0: [0], 1: [0], 2: [0, 1], 3: [0]}
    assert two.get(models["group/0"])["w"].tolist() == [1, 1]
    assert two.commit(str(tmp_path), models) == manifest


def test_memory_that_did_not_change_keeps_its_object(tmp_path):
    one = federation()
    one.map(remember, round=0)
    first = one.commit(str(tmp_path), {})["memory"]

    assert one.commit(str(tmp_path), {})["memory"] == first


def test_it_describes_itself_as_this_process():
    (row,) = federation().describe()

    assert (row["role"], row["pid"], row["clients"]) == ("clients", os.getpid(), 4)
    assert federation().restarts == 0
    assert federation().close() is None

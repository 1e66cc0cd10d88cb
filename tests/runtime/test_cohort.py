"""Clients in one process: memory, failures, and sums that do not depend on who shares a cohort."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from raysim.core.aggregation import mean, merge
from raysim.core.threads import one_thread
from raysim.errors import ClientFailed, DataError, StaleCall
from raysim.protocols import ClientRecord, Contribution, Where
from raysim.runtime.cohort import Call, Cohort, merge_shards, resolve_with
from raysim.seeding import stream


def records(count: int) -> list[ClientRecord]:
    return [ClientRecord(k, np.arange(k, k + 3), np.full(3, k)) for k in range(count)]


def cohort(count: int = 3) -> Cohort:
    return Cohort(records(count), world=None)


def call(task, on=(0, 1, 2), *, each=None, groups=None, where=None, **shared) -> Call:
    return Call(task, tuple(on), shared, each or {}, groups, where)


def plain(value):
    return value


def echo(client, memory, arguments):
    return memory, (client.id, dict(arguments))


def count_up(client, memory, arguments):
    times = int(memory.get("times", 0)) + 1
    return {"times": np.array(times), "labels": client.record.labels}, times


def look(client, memory, arguments):
    return memory, {name: array.tolist() for name, array in memory.items()}


def fail_on(client, memory, arguments):
    if client.id == arguments["who"]:
        raise ZeroDivisionError("no samples")
    return memory, None


def refuse(client, memory, arguments):
    raise DataError("file is gone; fetch it")


def give(client, memory, arguments):
    rng = stream(0, "give", client.id)
    tree = {"w": rng.normal(0, 10.0 ** rng.integers(-6, 4), 40).astype(np.float32)}
    return memory, Contribution(tree, float(rng.uniform(0.1, 5)), reply=client.id)


def give_nan(client, memory, arguments):
    return memory, Contribution({"w": np.array([np.nan])}, 1.0)


def give_nothing(client, memory, arguments):
    return memory, {"w": np.zeros(1)}


# ---- calls -----------------------------------------------------------------------------------


def test_each_client_sees_the_shared_arguments_and_its_own():
    replies = cohort().run(call(echo, each={1: {"lr": 9}}, lr=1, seed=4), plain).replies

    assert replies == {
        0: (0, {"lr": 1, "seed": 4}),
        1: (1, {"lr": 9, "seed": 4}),
        2: (2, {"lr": 1, "seed": 4}),
    }


def test_a_reduce_tells_each_client_its_group():
    def task(client, memory, arguments):
        return memory, Contribution({}, 1.0, arguments["group"])

    outcome = cohort().run(call(task, groups={0: 5, 1: 6, 2: 5}), plain)

    assert outcome.replies == {0: 5, 1: 6, 2: 5}


def test_only_the_named_clients_run():
    assert list(cohort().run(call(echo, on=(2,)), plain).replies) == [2]


def test_scratch_stays_between_calls_and_is_private():
    def task(client, memory, arguments):
        client.scratch["calls"] = client.scratch.get("calls", 0) + 1
        return memory, client.scratch["calls"]

    one = cohort()
    one.run(call(task, on=(0,)), plain)

    assert one.run(call(task), plain).replies == {0: 2, 1: 1, 2: 1}


def test_handles_are_resolved_wherever_they_are():
    fetched = []

    def fetch(handles):
        fetched.append([handle.value for handle in handles])
        return fetched[-1]

    resolve = resolve_with(fetch, SimpleNamespace)
    handle, other = SimpleNamespace(value="tree"), SimpleNamespace(value="other")

    found = resolve({"a": handle, "b": [1, (handle,)], "c": {"d": other}, "e": "plain"})

    assert found == {"a": "tree", "b": [1, ("tree",)], "c": {"d": "other"}, "e": "plain"}
    assert fetched == [["tree", "other"]]  # in one go, each of them once
    assert resolve({"e": "plain"}) == {"e": "plain"}
    assert len(fetched) == 1  # nothing to ask for


# ---- memory ----------------------------------------------------------------------------------


def test_memory_lives_from_call_to_call():
    one = cohort()
    one.run(call(count_up, on=(0, 2)), plain)

    assert one.run(call(count_up), plain).replies == {0: 2, 1: 1, 2: 2}


def test_changed_says_whether_any_memory_changed():
    one = cohort()

    assert not one.run(call(echo), plain).changed
    assert one.run(call(count_up, on=(1,)), plain).changed
    assert not one.run(call(look), plain).changed


def test_saved_memory_comes_back(tmp_path):
    one, two = cohort(), cohort()
    one.run(call(count_up, on=(0, 2)), plain)

    digest, clients = one.save(str(tmp_path))
    two.load(str(tmp_path), {digest: clients})

    assert clients == [0, 2]
    assert two.run(call(look), plain).replies == one.run(call(look), plain).replies


def test_memory_is_saved_once_per_change(tmp_path):
    one = cohort()
    assert one.save(str(tmp_path)) is None
    one.run(call(count_up, on=(1,)), plain)

    assert one.save(str(tmp_path))[1] == [1]
    assert one.save(str(tmp_path)) is None


def test_loading_takes_every_client_back_to_the_commit(tmp_path):
    one = cohort()
    one.run(call(count_up, on=(0,)), plain)
    digest, clients = one.save(str(tmp_path))
    one.run(call(count_up), plain)

    one.load(str(tmp_path), {digest: clients})

    assert one.run(call(look), plain).replies == {
        0: {"times": 1, "labels": [0, 0, 0]},
        1: {},
        2: {},
    }
    assert one.save(str(tmp_path)) is None


def test_memory_moves_to_another_cut_of_the_clients(tmp_path):
    whole = cohort(4)
    whole.run(call(count_up, on=(0, 1, 2, 3)), plain)
    digest, clients = whole.save(str(tmp_path))

    part = Cohort(records(4)[1:3], world=None)
    part.load(str(tmp_path), {digest: clients})

    assert part.run(call(count_up, on=(1, 2)), plain).replies == {1: 2, 2: 2}


def test_a_client_that_emptied_its_memory_stays_empty(tmp_path):
    one = cohort(1)
    one.run(call(count_up, on=(0,)), plain)
    shards = merge_shards({}, [one.save(str(tmp_path))])
    one.run(call(lambda client, memory, arguments: ({}, None), on=(0,)), plain)
    shards = merge_shards(shards, [one.save(str(tmp_path))])

    one.load(str(tmp_path), shards)

    assert one.run(call(look, on=(0,)), plain).replies == {0: {}}


def test_shards_point_to_the_newest_memory_and_drop_what_nobody_needs():
    before = {"old": [0, 1], "older": [2], "oldest": [3]}

    after = merge_shards(before, [("new", [1, 2]), ("other", [4])])

    assert after == {"old": [0], "new": [1, 2], "oldest": [3], "other": [4]}
    assert before == {"old": [0, 1], "older": [2], "oldest": [3]}


# ---- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "groups", "reason"),
    [
        (fail_on, None, "ZeroDivisionError: no samples"),
        (give_nan, {1: 0}, "must be finite"),
        (give_nothing, {1: 0}, "reduce needs a Contribution, got dict"),
    ],
)
def test_a_failure_names_client_task_stage_and_reason_after_pickling(task, groups, reason):
    with pytest.raises(ClientFailed) as caught:
        cohort().run(call(task, on=(1,), groups=groups, where=Where("train", 2, 9), who=1), plain)

    again = pickle.loads(pickle.dumps(caught.value))

    assert (again.client, again.task, again.where) == (1, task.__name__, Where("train", 2, 9))
    assert reason in again.reason
    assert str(again).startswith(
        f"client 1 failed in train round 3/9 while running {task.__name__}"
    )


def test_a_failure_keeps_the_original_traceback():
    with pytest.raises(ClientFailed) as caught:
        cohort().run(call(fail_on, who=2), plain)

    assert caught.value.client == 2
    assert "in fail_on" in caught.value.trace
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_raised_on_purpose_passes_as_it_is():
    with pytest.raises(DataError, match="file is gone"):
        cohort().run(call(refuse), plain)


# ---- sums ------------------------------------------------------------------------------------


def totals(cut: list[list[int]], groups: dict[int, int]) -> dict[int, dict[str, np.ndarray]]:
    """Means per group when every part of ``cut`` is a cohort of its own."""
    merged: dict[int, object] = {}
    for part in cut:
        one = Cohort([r for r in records(12) if r.id in part], world=None)
        outcome = one.run(call(give, on=part, groups={k: groups[k] for k in part}), plain)
        for g, total in outcome.sums.items():
            merged[g] = merge(merged[g], total) if g in merged else total
    return {g: mean(total, np.float64) for g, total in sorted(merged.items())}


CUTS = [
    [list(range(6)), list(range(6, 12))],
    [[11, 3], [0, 1, 2], [10, 4, 5, 6, 7, 8, 9]],
    [[9, 6, 3, 0], [1, 4], [10, 7], [2, 5, 8, 11]],
    [[k] for k in reversed(range(12))],
]


@pytest.mark.parametrize("cut", CUTS)
def test_sums_have_the_same_bits_for_any_cut_into_cohorts(cut):
    groups = {k: k % 3 for k in range(12)}

    whole, parts = totals([list(range(12))], groups), totals(cut, groups)

    assert whole.keys() == parts.keys() == {0, 1, 2}
    assert all(np.array_equal(whole[g]["w"], parts[g]["w"]) for g in whole)


def test_one_thread_inside_and_the_old_number_afterwards():
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# ---- calls that come twice -------------------------------------------------------------------


def numbered(number, task=count_up, **options):
    return replace(call(task, **options), number=number)


def test_a_call_that_comes_twice_changes_memory_once():
    own = cohort()
    own.run(numbered(0), plain)
    first = own.run(numbered(1), plain)

    again = own.run(numbered(1), plain)

    assert again.replies == first.replies == {0: 2, 1: 2, 2: 2}
    assert again.changed
    assert own.run(numbered(2), plain).replies == {0: 3, 1: 3, 2: 3}


def test_a_call_that_a_later_one_overtook_is_refused():
    own = cohort()
    own.run(numbered(5), plain)

    with pytest.raises(StaleCall, match="call 4 came after call 5"):
        own.run(numbered(4), plain)

    assert own.run(numbered(6), plain).replies[0] == 2


def test_a_save_asked_for_twice_gives_the_same_answer(tmp_path):
    own = cohort()
    own.run(numbered(0), plain)
    first = own.save(str(tmp_path), 1)

    assert own.save(str(tmp_path), 1) == first is not None
    assert own.save(str(tmp_path), 2) is None  # nothing changed since


# ---- guests ----------------------------------------------------------------------------------


def tell_memory(client, memory, arguments):
    tree = {"w": np.full(2, float(memory.get("times", 0)), np.float32)}
    return memory, Contribution(tree, 1.0, reply=client.record.labels.tolist())


def test_a_guest_brings_its_record_and_memory_and_leaves_nothing():
    away, home = Cohort(records(2), world=None), Cohort(records(4)[2:], world=None)
    home.run(call(count_up, on=(2, 3)), plain)
    groups = {1: 0, 3: 0}
    visit = replace(call(tell_memory, on=(1, 3), groups=groups), guests=(records(4)[3],))

    outcome = away.run(visit, plain, home.lend([3]))

    assert outcome.replies == {1: [1, 1, 1], 3: [3, 3, 3]}
    assert mean(outcome.sums[0])["w"].tolist() == [0.5, 0.5]  # own memory 0, the guest's 1
    with pytest.raises(KeyError):
        away.lend([3])


def test_what_a_guest_brings_counts_and_not_a_copy_it_left_behind():
    stale, home = Cohort(records(4), world=None), Cohort(records(4)[2:], world=None)
    home.run(call(count_up, on=(3,)), plain)
    visit = replace(call(tell_memory, on=(3,), groups={3: 0}), guests=(records(4)[3],))

    outcome = stale.run(visit, plain, home.lend([3]))

    assert mean(outcome.sums[0])["w"].tolist() == [1.0, 1.0]

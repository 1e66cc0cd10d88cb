"""Tasks that take many clients of an actor at once mean the same as one after another."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from raysim.core.aggregation import mean
from raysim.errors import ClientFailed, DataError
from raysim.protocols import ClientRecord, Contribution, Stacked, Where, stacked
from raysim.runtime.cohort import Call, Cohort


def cohort(count: int = 4) -> Cohort:
    records = [ClientRecord(k, np.arange(1), np.zeros(1, int)) for k in range(count)]
    return Cohort(records, world=None)


def run(task, *, groups=None, on=(0, 1, 2, 3), **shared):
    return cohort().run(
        Call(task, on, shared, {}, groups, Where("train", 1, 9)), lambda value: value
    )


def value_of(client, arguments) -> np.ndarray:
    return np.array(arguments["values"][client.id], np.float32)


def in_stacks(clients, memories, arguments):
    """Two stacks, the second client of all first: order must not matter."""
    if arguments[0].get("one_by_one"):
        return None
    order = [1, 0, *range(2, len(clients))]
    return iter([stack(clients, arguments, order[:1]), stack(clients, arguments, order[1:])])


def stack(clients, arguments, places) -> Stacked:
    chosen = [clients[p] for p in places]
    values = np.stack([value_of(c, arguments[0]) for c in chosen])
    ids = tuple(c.id for c in chosen)
    return Stacked(ids, ids, {"w": values}, np.array([1.0 + k for k in ids]))


@stacked(in_stacks)
def give(client, memory, arguments):
    value = value_of(client, arguments)
    return memory, Contribution({"w": value}, 1.0 + client.id, client.id)


VALUES = np.random.default_rng(0).normal(0, 100, (4, 30))


@pytest.mark.parametrize("groups", [(0, 0, 0, 0), (0, 1, 0, 1), (3, 2, 1, 0)])
def test_stacks_sum_to_the_bits_of_one_after_another(groups):
    by_client = dict(enumerate(groups))

    stacked = run(give, groups=by_client, values=VALUES)
    single = run(give, groups=by_client, values=VALUES, one_by_one=True)

    assert stacked.replies == single.replies == {0: 0, 1: 1, 2: 2, 3: 3}
    assert list(stacked.replies) == [0, 1, 2, 3]
    for g in set(groups):
        one, two = stacked.sums[g], single.sums[g]
        assert (one.weight, one.count) == (two.weight, two.count)
        assert np.array_equal(mean(one, np.float64)["w"], mean(two, np.float64)["w"])


def test_a_task_in_stacks_changes_no_memory():
    outcome = run(give, groups=dict.fromkeys(range(4), 0), values=VALUES)

    assert not outcome.changed


def test_a_map_in_stacks_gives_replies_in_order():
    @stacked(lambda clients, memories, arguments: iter([Stacked((3, 1), ("c", "a"))]))
    def task(client, memory, arguments):
        raise AssertionError

    assert list(run(task, on=(1, 3)).replies.items()) == [(1, "a"), (3, "c")]


def test_a_stack_refuses_only_what_one_after_another_refuses():
    # An exact sum holds 1.34e8: the first value fits, and so does its sum with the others.
    values = np.array([[1.2e8], [1.0], [1.0], [1.0]])

    single = run(give, groups=dict.fromkeys(range(4), 0), values=values, one_by_one=True)
    stacked = run(give, groups=dict.fromkeys(range(4), 0), values=values)

    assert np.array_equal(mean(stacked.sums[0])["w"], mean(single.sums[0])["w"])


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[1.0], [1.0], [1e21], [1.0]]), "weighted sum"),
        (np.array([[1.0], [1.0], [np.nan], [1.0]]), "must be finite"),
    ],
)
def test_a_client_whose_arrays_cannot_be_summed_is_named(values, reason):
    with pytest.raises(ClientFailed, match=reason) as caught:
        run(give, groups=dict.fromkeys(range(4), 0), values=values)

    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.client, again.task, again.where) == (2, "give", Where("train", 1, 9))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_failure_inside_a_stack_names_the_client(is_late):
    def together(clients, memories, arguments):
        if not is_late:
            raise IndexError("label 12")
        return fail_late()

    def fail_late():
        raise IndexError("label 12")
        yield

    @stacked(together)
    def task(client, memory, arguments):
        if client.id == 3:
            raise IndexError("label 12")
        return memory, None

    with pytest.raises(ClientFailed, match=r"client 3 failed in train round 2/9.*label 12"):
        run(task)


def test_a_failure_that_names_its_client_learns_where_it_was():
    def together(clients, memories, arguments):
        raise ClientFailed(2, "task", "diverged")
        yield

    @stacked(together)
    def task(client, memory, arguments):
        return memory, None

    with pytest.raises(ClientFailed, match="client 2 failed in train round 2/9 while running task"):
        run(task)


def test_an_error_raised_on_purpose_passes_as_it_is():
    def together(clients, memories, arguments):
        raise DataError("file is gone; fetch it")
        yield

    @stacked(together)
    def task(client, memory, arguments):
        return memory, None

    with pytest.raises(DataError, match="file is gone"):
        run(task)

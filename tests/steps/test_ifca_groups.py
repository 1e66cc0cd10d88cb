"""Who joins which group: IFCA's choice and FB-NLL's Procedure 4."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.methods.ifca import equal_sizes, fills_all, forced_groups, natural_groups

LOSSES = np.array([[0.9, 0.1], [0.2, 0.1], [0.4, 0.3], [0.3, 0.2]])
"""Everyone likes model 1 best."""


def by_hand(losses, sizes):
    """Procedure 4, step 3, as a loop: for every group the N_m free clients of smallest loss."""
    groups, free = {}, set(range(len(losses)))
    for m, size in enumerate(sizes):
        for _ in range(size):
            best = min(free, key=lambda k: (losses[k][m], k))
            groups[best] = m
            free.remove(best)
    return [groups[k] for k in range(len(losses))]


def cases(seed, max_groups=5):
    rng = np.random.default_rng(seed)
    num_groups = int(rng.integers(1, max_groups + 1))
    losses = rng.integers(0, 4, (int(rng.integers(num_groups, 12)), num_groups)) / 4  # with ties
    cuts = rng.choice(len(losses) - 1, num_groups - 1, replace=False) + 1 if num_groups > 1 else []
    return losses, np.diff([0, *np.sort(cuts), len(losses)])


def test_a_client_joins_the_model_of_smallest_loss_and_the_first_in_a_tie():
    losses = np.array([[3.0, 1.0, 2.0], [5.0, 5.0, 5.0], [2.0, 1.0, 1.0]])

    assert natural_groups(losses).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("groups", "smallest", "filled"),
    [([0, 1, 1], 1, True), ([1, 1, 1], 1, False), ([0, 0, 1], 1, True), ([0, 0, 1], 2, False)],
)
def test_groups_are_filled_when_the_smallest_is_large_enough(groups, smallest, filled):
    assert fills_all(np.array(groups), 2, smallest=smallest) == filled


def test_forced_groups_worked_by_hand():
    # All natural choices are 1. With N = (3, 1) group 0 takes the losses 0.2, 0.3, 0.4 of its
    # model (clients 1, 3, 2), group 1 what is left.
    assert forced_groups(LOSSES, np.array([3, 1])).tolist() == [1, 0, 0, 0]
    # With N = (1, 3): client 1 has the smallest loss under model 0.
    assert forced_groups(LOSSES, np.array([1, 3])).tolist() == [1, 0, 1, 1]


def test_the_lower_client_wins_a_tie_when_groups_are_forced():
    assert forced_groups(np.ones((4, 2)), np.array([2, 2])).tolist() == [0, 0, 1, 1]


@given(st.integers(0, 10_000))
def test_forced_groups_follow_the_loop_of_procedure_4(seed):
    losses, sizes = cases(seed)

    assert forced_groups(losses, sizes).tolist() == by_hand(losses, sizes)


@given(st.integers(0, 10_000))
def test_forced_groups_keep_the_sizes_so_that_none_is_ever_empty(seed):
    losses, sizes = cases(seed)

    found = forced_groups(losses, sizes)

    assert np.array_equal(np.bincount(found, minlength=len(sizes)), sizes)
    assert fills_all(found, len(sizes))


def test_sizes_that_leave_someone_out_are_refused():
    with pytest.raises(ValueError, match=r"must add up to 4 clients, got \[2 1\]"):
        forced_groups(LOSSES, np.array([2, 1]))


@pytest.mark.parametrize(
    ("clients", "groups", "sizes"),
    [(25, 3, [9, 8, 8]), (20, 5, [4] * 5), (5, 5, [1] * 5), (1, 1, [1]), (7, 2, [4, 3])],
)
def test_equal_shares_differ_by_at_most_one(clients, groups, sizes):
    assert equal_sizes(clients, groups).tolist() == sizes

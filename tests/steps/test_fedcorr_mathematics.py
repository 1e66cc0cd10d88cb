"""LID, the split by two Gaussians and confident relabelling, against FedCorr's equations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.methods import fedcorr
from raysim.methods.fedcorr import (
    doubtful,
    local_intrinsic_dimension,
    upper_component,
    with_predictions,
)


def outputs(seed, samples=30, classes=4):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), samples)


def lid_by_loops(points, k):
    """FedCorr, Eq. (2), without the small constants."""
    found = []
    for i, own in enumerate(points):
        others = sorted(math.dist(own, p) for j, p in enumerate(points) if j != i)[:k]
        found.append(-1.0 / (sum(math.log(d / others[-1]) for d in others) / k))
    return sum(found) / len(found)


@given(st.integers(0, 10_000), st.integers(5, 40))
def test_lid_is_the_mean_of_the_equation_over_the_samples(seed, neighbours):
    points = outputs(seed)

    found = local_intrinsic_dimension(points, neighbours)

    # The constants of 1e-6 matter where neighbours are equally far: one part in a thousand.
    assert found == pytest.approx(lid_by_loops(points, min(neighbours, 29)), rel=1e-3)


def test_lid_worked_by_hand():
    # On a line at 0, 1 and 3, two neighbours each. Ratios to the farther one: 1/3, 1/2, 2/3.
    # LID_i = -2 / log(ratio): 1.8205, 2.8854, 4.9326; mean 3.2128.
    points = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]])

    assert local_intrinsic_dimension(points, 20) == pytest.approx(3.2128, abs=1e-3)


def test_lid_does_not_depend_on_how_the_distances_are_cut(monkeypatch):
    points = outputs(3, samples=50)
    whole = local_intrinsic_dimension(points)

    monkeypatch.setattr(fedcorr, "CHUNK", 7)

    assert local_intrinsic_dimension(points) == pytest.approx(whole, rel=1e-9)


def test_spread_outputs_have_a_higher_lid_than_those_on_a_line():
    rng = np.random.default_rng(0)
    share = rng.uniform(size=(200, 1))
    line = np.hstack([share, 1 - share, np.zeros((200, 8))])

    assert local_intrinsic_dimension(line) < local_intrinsic_dimension(outputs(0, 200, 10))


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_too_few_samples_have_lid_zero(samples):
    assert local_intrinsic_dimension(outputs(0, samples)) == 0.0


def test_equal_outputs_have_a_finite_lid():
    assert 0.0 < local_intrinsic_dimension(np.full((5, 3), 1 / 3)) < 1.0


def test_the_upper_of_two_clear_heaps_is_found():
    values = np.array([1.0, 9.1, 1.2, 0.9, 9.0, 1.1, 8.8])

    found = upper_component(values)

    assert found.tolist() == [False, True, False, False, True, False, True]
    assert np.array_equal(upper_component(-values), ~found)


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0, 2.0]])
def test_nothing_is_upper_where_values_cannot_be_told_apart(values):
    assert not upper_component(np.array(values)).any()


def test_of_two_different_values_the_larger_is_upper():
    assert upper_component(np.array([0.4, 0.1])).tolist() == [True, False]


def test_two_gaussians_do_not_change_with_the_number_of_threads():
    from threadpoolctl import threadpool_limits

    values = np.random.default_rng(0).gamma(2.0, 1.0, 3000)  # no clear gap: borders matter

    with threadpool_limits(limits=2):
        two = upper_component(values)

    with threadpool_limits(limits=1):
        assert np.array_equal(upper_component(values), two)


def test_doubtful_are_the_largest_losses_and_the_first_in_a_tie():
    losses = np.array([0.5, 2.0, 0.5, 3.0, 0.1])

    assert doubtful(losses, 3).tolist() == [3, 1, 0]
    assert doubtful(losses, 0).tolist() == []
    assert doubtful(losses, 9).tolist() == [3, 1, 0, 2, 4]


def test_only_confident_candidates_get_the_predicted_label():
    probabilities = np.array([[0.1, 0.9], [0.1, 0.9], [0.5, 0.5], [0.8, 0.2]])
    labels = np.zeros(4, dtype=np.int64)

    # 0: no candidate. 1: confident, becomes 1. 2: not above 0.5. 3: keeps 0, which is predicted.
    new = with_predictions(probabilities, labels, np.array([1, 2, 3]), 0.5)

    assert new.tolist() == [0, 1, 0, 0]
    assert labels.tolist() == [0, 0, 0, 0]


def test_without_candidates_labels_stay():
    labels = np.array([1, 0])

    assert with_predictions(outputs(0, 2, 2), labels, np.arange(0), 0.0).tolist() == [1, 0]

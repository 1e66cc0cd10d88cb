"""RHFL's weights and mixtures, against section 3.3 written as loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.confidence import confidence_weights, others_mixture

UNKNOWN = math.nan


def by_loops(losses, previous, factor):
    """rhfl.md, step 2, with sum |q|."""
    count = len(losses)
    q = [(before - now) / now for before, now in zip(previous, losses, strict=True)]
    u = [1 / (count - 1) + factor * own / sum(abs(x) for x in q) for own in q]
    return [math.exp(x) / sum(math.exp(y) for y in u) for x in u]


@given(st.integers(0, 10_000))
def test_weights_follow_the_equation(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    losses, previous = rng.uniform(0.1, 5, count), rng.uniform(0.1, 5, count)

    found = confidence_weights(losses, previous, factor=0.5)

    np.testing.assert_allclose(found, by_loops(losses, previous, 0.5), rtol=1e-9)


def test_weights_worked_by_hand():
    # q = (2 - 1) / 1, (1 - 2) / 2, 0 = 1, -1/2, 0; sum |q| = 3/2; u = 1/2 + q / 3 =
    # 0.8333, 0.3333, 0.5; exp: 2.3010, 1.3956, 1.6487, sum 5.3453.
    losses, previous = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])

    found = confidence_weights(losses, previous, factor=0.5)

    np.testing.assert_allclose(found, [0.4305, 0.2611, 0.3084], atol=1e-4)


def test_at_first_all_weigh_one_over_the_others():
    found = confidence_weights(np.array([1.0, 5.0, 2.0]), np.full(3, UNKNOWN), factor=0.5)

    assert found.tolist() == [0.5, 0.5, 0.5]


def test_who_has_no_earlier_loss_counts_as_unchanged():
    losses = np.array([1.0, 2.0, 3.0])

    found = confidence_weights(losses, np.array([2.0, 1.0, UNKNOWN]), factor=0.5)

    expected = confidence_weights(losses, np.array([2.0, 1.0, 3.0]), factor=0.5)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("losses", "previous"), [([1.0, 2.0], [1.0, 2.0]), ([0.0, 0.0], [0.0, 0.0])]
)
def test_losses_that_do_not_move_or_vanish_give_equal_weights(losses, previous):
    found = confidence_weights(np.array(losses), np.array(previous), factor=0.5)

    assert found.tolist() == [0.5, 0.5]


def test_factor_zero_makes_all_alike():
    found = confidence_weights(np.array([1.0, 2.0]), np.array([9.0, 0.1]), factor=0.0)

    assert found.tolist() == [0.5, 0.5]


def test_opposite_changes_keep_their_signs():
    # The released code divides by sum q = 0.5 - 0.5: here the one that improved weighs more.
    found = confidence_weights(np.array([1.0, 1.0]), np.array([1.5, 0.5]), factor=0.5)

    assert found[0] > 0.5 > found[1]


@pytest.mark.parametrize("count", [0, 1])
def test_who_is_alone_weighs_nothing(count):
    assert confidence_weights(np.ones(count), np.ones(count), factor=0.5).tolist() == [0.0] * count


def test_the_mixture_leaves_out_oneself():
    rng = np.random.default_rng(0)
    outputs, weights = rng.dirichlet(np.ones(3), (4, 5)), rng.uniform(size=4)

    found = others_mixture(outputs, weights)

    for k in range(4):
        expected = sum(weights[i] * outputs[i] for i in range(4) if i != k)
        np.testing.assert_allclose(found[k], expected, atol=1e-12)


def test_the_gradient_towards_a_mixture_is_that_of_the_weighted_divergences():
    # sum_i w_i KL(p_i || p) and -sum_c t_c log p_c with t = sum_i w_i p_i differ by a constant.
    rng = np.random.default_rng(1)
    outputs, weights = rng.dirichlet(np.ones(3), (4, 1)), rng.uniform(size=4)
    target = others_mixture(outputs, weights)[0, 0]

    def divergence(own):
        return sum(
            weights[i] * sum(outputs[i, 0] * np.log(outputs[i, 0] / own)) for i in range(1, 4)
        )

    one, two = rng.dirichlet(np.ones(3), 2)
    moved = -(target * np.log(one)).sum() + (target * np.log(two)).sum()
    assert moved == pytest.approx(divergence(one) - divergence(two))

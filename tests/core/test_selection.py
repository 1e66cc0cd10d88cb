"""Small losses and the two Gaussians over scaled losses, worked by hand and by loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.selection import clean_posterior, sieved, small_loss, smallest, unit_range
from raysim.methods.cores2 import confident_loss


@pytest.mark.parametrize(
    ("count", "rate", "kept"), [(5, 0.2, 4), (4, 0.2, 3), (10, 0.9, 1), (3, 1.0, 0), (3, 0.0, 3)]
)
def test_small_loss_keeps_the_floor_of_the_clean_share(count, rate, kept):
    assert small_loss(np.arange(count, dtype=float), rate).sum() == kept


def test_small_loss_worked_by_hand():
    # floor(0.6 * 5) = 3 of them: 0.1, 0.2, and the first 0.5.
    found = small_loss(np.array([0.5, 0.1, 0.9, 0.5, 0.2]), 0.4)

    assert found.tolist() == [True, True, False, False, True]


@given(st.lists(st.floats(0, 10), max_size=20), st.integers(0, 25))
def test_what_is_left_out_is_nowhere_smaller(losses, count):
    values = np.array(losses)

    mask = smallest(values, count)

    assert mask.sum() == min(count, len(values))
    if mask.any() and not mask.all():
        assert values[mask].max() <= values[~mask].min()


def test_losses_up_to_their_mean_are_kept():
    # The mean loss of logits (3, 0, 0) is that of a logit of 1.
    found = sieved(np.array([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), np.array([0, 1]))

    assert found.tolist() == [True, False]


def test_the_mean_loss_counts_impossible_classes_up_to_a_floor():
    # Label 1 costs 25, eight classes would cost 50 each: their mean is 42.5, with the floor 16.6.
    logits = np.array([[40.0, 15.0, *[-10.0] * 8]])

    assert logits[0, 1] > logits.mean()
    assert not sieved(logits, np.array([1])).any()


@given(st.lists(st.lists(st.floats(-60, 60), min_size=3, max_size=3), min_size=1, max_size=9))
def test_the_sieve_is_the_one_of_training(rows):
    torch = pytest.importorskip("torch")
    logits, labels = np.array(rows), np.arange(len(rows)) % 3

    excess = confident_loss(torch.tensor(logits), torch.tensor(labels), 1.0).numpy()

    clear = np.abs(excess) > 1e-9
    assert (sieved(logits, labels) == (excess <= 0))[clear].all()


def test_unit_range_worked_by_hand():
    assert unit_range(np.array([2.0, 6.0, 3.0])).tolist() == [0.0, 1.0, 0.25]
    assert unit_range(np.array([4, 4])).tolist() == [0.5, 0.5]
    assert unit_range(np.zeros(0)).tolist() == []


def posterior_by_loops(losses, rounds=100):
    """EM for two Gaussians, one number at a time, from the two halves of the range."""
    low, high = min(losses), max(losses)
    x = [(v - low) / (high - low) for v in losses]
    weight = [[float(v < 0.5), float(v >= 0.5)] for v in x]
    before = None
    for _ in range(rounds + 1):
        total = [sum(w[j] for w in weight) for j in (0, 1)]
        mean = [sum(w[j] * v for w, v in zip(weight, x, strict=True)) / total[j] for j in (0, 1)]
        spread = [
            sum(w[j] * (v - mean[j]) ** 2 for w, v in zip(weight, x, strict=True)) / total[j] + 5e-4
            for j in (0, 1)
        ]
        logs = 0.0
        for i, v in enumerate(x):
            each = [
                total[j]
                / len(x)
                * math.exp(-((v - mean[j]) ** 2) / 2 / spread[j])
                / math.sqrt(2 * math.pi * spread[j])
                for j in (0, 1)
            ]
            weight[i] = [p / sum(each) for p in each]
            logs += math.log(sum(each)) / len(x)
        if before is not None and abs(logs - before) < 1e-2:
            break
        before = logs
    return [w[0] for w in weight]


def test_the_posterior_is_that_of_expectation_maximisation():
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.normal(0.3, 0.1, 30), rng.normal(1.5, 0.4, 20)]).clip(0)

    found = clean_posterior(losses)

    expected = posterior_by_loops(losses.tolist())
    # Both stop where the likelihood moves by less than 0.01, from the same start (2-means).
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert (found[:30] > 0.5).mean() > 0.9
    assert (found[30:] > 0.5).mean() < 0.1


def test_the_posterior_does_not_depend_on_the_unit_of_the_losses():
    losses = np.array([0.1, 0.15, 0.2, 2.0, 2.2])

    np.testing.assert_allclose(clean_posterior(losses), clean_posterior(losses * 8 + 4), atol=1e-9)
    assert (clean_posterior(losses) > 0.5).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("losses", [[], [0.3], [0.7, 0.7, 0.7]])
def test_losses_that_cannot_be_told_apart_speak_for_every_label(losses):
    assert clean_posterior(np.array(losses)).tolist() == [1.0] * len(losses)


def test_two_samples_are_enough():
    assert (clean_posterior(np.array([3.0, 1.0])) > 0.5).tolist() == [False, True]


@pytest.mark.filterwarnings("error")
def test_one_step_of_the_fit_gives_no_warning():
    assert len(clean_posterior(np.arange(10.0), steps=1)) == 10

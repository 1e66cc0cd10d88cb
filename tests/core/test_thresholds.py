"""Cutting losses by the Kolmogorov-Smirnov distance: by hand, as a slow loop, at the edges."""

import numpy as np
import pytest
from scipy.stats import ks_2samp

from raysim.core.thresholds import closest_cut, cut_distances, loss_bins
from raysim.seeding import stream


def test_bins_have_equal_width_and_the_last_one_is_open():
    found = loss_bins(np.array([0.0, 0.29, 0.3, 29.9, 30.0, 1e9, -1e-9]), largest=30.0, bins=100)

    assert found.tolist() == [0, 0, 1, 99, 99, 99, 0]


def test_the_cut_is_where_what_is_left_looks_like_the_reference():
    # Clean losses: half in bin 0, half in bin 1. Clients: the same, and wrong labels in bin 3.
    reference, pooled = np.array([5, 5, 0, 0]), np.array([20, 20, 0, 40])

    # Cut behind bin 0: |1 - 1/2|; behind 1 or 2: 0; behind 3: |1/4 - 1/2| and |1/2 - 1|.
    assert cut_distances(reference, pooled).tolist() == [0.5, 0.0, 0.0, 0.5]
    assert closest_cut(reference, pooled) == 1


def test_a_cut_below_all_losses_is_never_taken():
    pooled = np.array([0, 0, 3, 1])

    assert np.isinf(cut_distances(np.array([9, 0, 0, 0]), pooled)[:2]).all()
    assert closest_cut(np.array([9, 0, 0, 0]), pooled) == 2


def test_nothing_to_cut_keeps_everything():
    assert closest_cut(np.array([1, 2, 3]), np.zeros(3, int)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_distances_are_those_of_the_two_sample_statistic(seed):
    rng = stream(seed, "test.thresholds")
    clean, noisy = rng.integers(0, 6, 40), rng.integers(0, 12, 70)
    reference, pooled = (np.bincount(x, minlength=12) for x in (clean, noisy))

    found = cut_distances(reference, pooled)

    for cut in range(12):
        left = noisy[noisy <= cut]
        expected = ks_2samp(clean, left).statistic if len(left) else np.inf
        assert found[cut] == pytest.approx(expected)
    assert closest_cut(reference, pooled) == int(np.argmin(found))

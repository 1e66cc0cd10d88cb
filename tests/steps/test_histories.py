"""Past predictions: appended, averaged, their entropy and majority, worked by hand and by loops."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.selection import appended
from raysim.methods.joint_optimization import mean_prediction
from raysim.methods.selfie import EMPTY, label_uncertainty, majority


def test_the_oldest_prediction_makes_room():
    history = np.array([[EMPTY, 4, 5], [1, 2, 3]], dtype=np.int16)

    found = appended(history, np.array([7, 8]))

    assert found.tolist() == [[4, 5, 7], [2, 3, 8]]
    assert found.dtype == np.int16
    assert history.tolist() == [[EMPTY, 4, 5], [1, 2, 3]]


def test_a_mean_is_over_the_predictions_that_were_made():
    history = np.array([[[0, 0], [0.5, 0.5], [1, 0]], [[0, 0], [0, 0], [0, 0]]])

    # One place is empty: (0.5 + 1) / 2; nothing at all stays nothing.
    assert mean_prediction(history).tolist() == [[0.75, 0.25], [0.0, 0.0]]


def test_one_of_fifteen_that_deviates_is_too_much_for_selfie():
    # 14/15 and 1/15 over log 10: 0.106, above the paper's 0.05.
    history = np.array([[3] * 14 + [5], [3] * 15])

    found = label_uncertainty(history, 10)

    expected = -(14 / 15 * math.log(14 / 15) + 1 / 15 * math.log(1 / 15)) / math.log(10)
    assert found == pytest.approx([expected, 0.0])
    assert found[0] == pytest.approx(0.106, abs=1e-3)


def test_a_history_that_is_not_full_is_never_sure():
    assert label_uncertainty(np.array([[EMPTY, 2, 2]]), 4).tolist() == [np.inf]


def test_one_class_has_no_uncertainty():
    assert label_uncertainty(np.array([[0, 0]]), 1).tolist() == [0.0]


def test_of_equally_frequent_labels_the_first_predicted_wins():
    history = np.array([[2, 1, 1, 2], [1, 2, 2, 1], [EMPTY, EMPTY, 3, 0], [0, 3, 3, 0]])

    assert majority(history, 4).tolist() == [2, 1, 3, 0]


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=8))
def test_uncertainty_and_majority_are_those_of_a_loop(rows):
    history = np.array(rows)

    for row, f, label in zip(
        rows, label_uncertainty(history, 4), majority(history, 4), strict=True
    ):
        shares = [n / 5 for n in Counter(row).values()]
        assert f == pytest.approx(-sum(s * math.log(s) for s in shares) / math.log(4), abs=1e-12)
        assert label == Counter(row).most_common(1)[0][0]  # the first one met, too


def test_no_samples_have_no_history():
    nothing = np.zeros((0, 3), dtype=np.int64)

    assert label_uncertainty(nothing, 4).shape == majority(nothing, 4).shape == (0,)
    assert mean_prediction(np.zeros((0, 3, 4))).shape == (0, 4)

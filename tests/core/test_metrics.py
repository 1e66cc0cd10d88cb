import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.metrics import (
    adjusted_rand,
    auroc,
    correction_report,
    noise_rate,
    normalized_mutual_info,
    purity,
)

groupings = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=12)


def slow_adjusted_rand(a, b):
    """Hubert and Arabie: pairs together in both, corrected for chance."""
    pairs = list(itertools.combinations(range(len(a)), 2))
    in_a = sum(a[i] == a[j] for i, j in pairs)
    in_b = sum(b[i] == b[j] for i, j in pairs)
    both = sum(a[i] == a[j] and b[i] == b[j] for i, j in pairs)
    expected = in_a * in_b / len(pairs)
    most = (in_a + in_b) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


@given(groupings)
def test_adjusted_rand_counts_pairs(pairs):
    a, b = zip(*pairs, strict=True)

    assert adjusted_rand(a, b) == pytest.approx(slow_adjusted_rand(a, b), abs=1e-12)


@given(groupings)
def test_names_of_groups_do_not_matter(pairs):
    a, b = (np.array(one) for one in zip(*pairs, strict=True))

    for score in (adjusted_rand, normalized_mutual_info, purity):
        assert score((a + 7) * 3, b) == pytest.approx(score(a, b), abs=1e-12)


def test_equal_groupings_score_one():
    for score in (adjusted_rand, normalized_mutual_info, purity):
        assert score([0, 0, 1, 2], [5, 5, 3, 4]) == pytest.approx(1.0)


def test_purity_worked_by_hand():
    groups, tasks = [0, 0, 0, 1, 1, 2], [0, 0, 1, 0, 0, 1]

    # Most common task per group: 2 + 2 + 1 of 6.
    assert purity(groups, tasks) == pytest.approx(5 / 6)


def test_mutual_information_of_independent_groupings_is_zero():
    assert normalized_mutual_info([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(0.0, abs=1e-12)


def test_correction_report_worked_by_hand():
    true = [0, 0, 0, 1, 1, 1, 2, 2]
    given_labels = [0, 0, 1, 1, 2, 0, 2, 1]  # wrong: samples 2, 4, 5, 7
    corrected = [0, 1, 0, 1, 1, 2, 2, 1]  # changed: 1 (harm), 2 (right), 4 (right), 5 (wrong)

    report = correction_report(true, given_labels, corrected)

    assert report == {
        "noise_before": 4 / 8,
        "noise_after": 3 / 8,
        "precision": 2 / 4,
        "recall": 2 / 4,
        "harm_rate": 1 / 4,
    }


def test_rates_over_no_samples_are_none():
    untouched = correction_report([0, 1], [0, 1], [0, 1])
    all_wrong = correction_report([0, 1], [1, 0], [0, 0])

    assert untouched["precision"] is None
    assert untouched["recall"] is None
    assert untouched["harm_rate"] == 0.0
    assert all_wrong["harm_rate"] is None
    assert (all_wrong["precision"], all_wrong["recall"]) == (1.0, 0.5)


def test_noise_rate_is_the_share_of_wrong_labels():
    assert noise_rate([0, 1, 2, 3], [0, 1, 0, 3]) == 0.25


@pytest.mark.parametrize(("a", "b"), [([], []), ([0, 1], [0]), ([[0]], [[0]])])
def test_vectors_that_do_not_fit_are_refused(a, b):
    for score in (adjusted_rand, normalized_mutual_info, purity, noise_rate):
        with pytest.raises(ValueError, match="one length"):
            score(a, b)


def test_auroc_worked_by_hand():
    # Pairs (positive, negative): 3>1, 3>2, 2>1 and 2=2 as a half: 3.5 of 4.
    assert auroc([True, False, True, False], [3, 1, 2, 2]) == pytest.approx(3.5 / 4)
    assert auroc([0, 0, 1], [1, 2, 3]) == 1.0
    assert auroc([1, 0, 0], [1, 2, 3]) == 0.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=15))
def test_auroc_counts_pairs(pairs):
    up = [score for positive, score in pairs if positive]
    down = [score for positive, score in pairs if not positive]
    wins = [(a > b) + (a == b) / 2 for a in up for b in down]

    found = auroc(*zip(*pairs, strict=True))

    assert found == (pytest.approx(np.mean(wins)) if wins else None)

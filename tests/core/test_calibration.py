import numpy as np
import pytest

from raysim.core.calibration import calibrate
from raysim.core.relabeling import class_subspaces, project
from raysim.core.similarity import relevance
from raysim.core.spectra import spectrum, truncate


def planes(seed, per_class=40, classes=3, dimension=12, true_rank=3, noise=0.05):
    """Classes that fill ``true_rank`` directions of their own, and noise beyond."""
    rng = np.random.default_rng(seed)
    rows = noise * rng.normal(size=(classes * per_class, dimension))
    labels = np.repeat(np.arange(classes), per_class)
    for c in range(classes):
        own = slice(true_rank * c, true_rank * (c + 1))
        rows[labels == c, own] += rng.normal(size=(per_class, true_rank))
    return rows, labels


def slow_percentiles(features, labels, rng, splits, rank):
    """Two halves per class and split; similarity of every half A with every half B."""
    same, different = [], []
    for _ in range(splits):
        halves = []
        for c in np.unique(labels):
            ids = rng.permutation(np.flatnonzero(labels == c))
            cut = len(ids) // 2
            halves.append((spectrum(features[ids[:cut]]), spectrum(features[ids[cut:]])))
        for a, (first, _) in enumerate(halves):
            for b, (_, second) in enumerate(halves):
                one, two = truncate(first, rank), truncate(second, rank)
                score = (relevance(one, two.vectors) + relevance(two, one.vectors)) / 2
                (same if a == b else different).append(float(score))
    return np.percentile(same, 5), np.percentile(different, 95)


def test_rank_and_threshold_follow_the_rule_done_slowly():
    features, labels = planes(0)
    ranks = (2, 3, 5, 8)

    found = calibrate(features, labels, np.random.default_rng(1), splits=3, ranks=ranks)

    table = {r: slow_percentiles(features, labels, np.random.default_rng(1), 3, r) for r in ranks}
    gaps = [table[r][0] - table[r][1] for r in ranks]
    low, high = table[ranks[int(np.argmax(gaps))]]
    assert found.rank == ranks[int(np.argmax(gaps))]
    assert (found.same_low, found.different_high) == pytest.approx((low, high), abs=1e-9)
    assert found.threshold == pytest.approx((low + high) / 2, abs=1e-9)


def test_projection_rank_has_the_best_held_out_accuracy():
    features, labels = planes(2, noise=0.6)

    found = calibrate(
        features, labels, np.random.default_rng(3), splits=1, projection_ranks=(1, 3, 12)
    )

    rng = np.random.default_rng(3)
    drawn = [rng.permutation(np.flatnonzero(labels == c)) for c in range(3)]
    first = np.concatenate([ids[:20] for ids in drawn])
    second = np.concatenate([ids[20:] for ids in drawn])
    subspaces = class_subspaces(features[first], labels[first], 12)
    scores = {
        rank: np.mean(
            project(features[second], subspaces.vectors(rank), np.full(60, -1)) == labels[second]
        )
        for rank in (1, 3, 12)
    }
    assert found.projection_rank == max(scores, key=scores.get) == 3
    assert found.accuracy == scores[3]
    assert scores[12] < 0.5  # the whole space tells nothing apart


def test_the_calibrated_threshold_separates_unseen_halves():
    features, labels = planes(4)

    found = calibrate(features, labels, np.random.default_rng(5))

    low, high = slow_percentiles(*planes(6), np.random.default_rng(7), 2, found.rank)
    assert high < found.threshold < low


def test_ranks_above_half_a_class_or_the_dimension_are_left_out():
    features, labels = planes(8, per_class=10)

    found = calibrate(features, labels, np.random.default_rng(9), ranks=(5, 6, 50))

    assert found.rank == 5
    assert found.projection_rank == 5


def test_without_a_feasible_rank_the_largest_possible_is_used():
    features, labels = planes(10, per_class=2)

    found = calibrate(features, labels, np.random.default_rng(11))

    assert (found.rank, found.projection_rank) == (1, 1)


def test_the_same_generator_gives_the_same_calibration():
    features, labels = planes(12)

    runs = [calibrate(features, labels, np.random.default_rng(13)) for _ in range(2)]

    assert runs[0] == runs[1]


def test_one_class_has_nothing_to_differ_from():
    features, labels = planes(14, classes=1)

    found = calibrate(features, labels, np.random.default_rng(15))

    assert found.different_high == 0.0
    assert found.accuracy == 1.0


def test_a_class_that_cannot_be_halved_is_refused_by_name():
    features, labels = planes(16)
    ids = np.concatenate([np.flatnonzero(labels != 1), np.flatnonzero(labels == 1)[:1]])

    with pytest.raises(ValueError, match=r"two clean images.*class 1"):
        calibrate(features[ids], labels[ids], np.random.default_rng(0))


def test_no_split_is_refused():
    with pytest.raises(ValueError, match="splits must be at least 1, got 0"):
        calibrate(*planes(17), np.random.default_rng(0), splits=0)

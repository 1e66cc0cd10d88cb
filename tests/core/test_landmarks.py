"""Grouping by landmarks: the slow definition, the exact grouping when all are landmarks, edges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.clustering import cluster
from raysim.core.landmarks import (
    assign_to_landmarks,
    choose_landmarks,
    group_by_landmarks,
    landmark_similarity,
)
from raysim.core.similarity import symmetric


def random_answers(seed, num_clients):
    """Relevances r(k, j) of every two clients; not symmetric."""
    return np.random.default_rng(seed).uniform(0.0, 1.0, (num_clients, num_clients))


def slow_assignment(similarity, landmarks, landmark_groups):
    """One client and one group at a time, straight from the definition."""
    names = sorted(set(landmark_groups))
    groups = []
    for k, row in enumerate(similarity):
        if k in landmarks:
            groups.append(landmark_groups[list(landmarks).index(k)])
            continue
        means = {
            g: np.mean([row[i] for i, own in enumerate(landmark_groups) if own == g]) for g in names
        }
        groups.append(max(names, key=lambda g: (means[g], -g)))
    order = sorted(names, key=groups.index)
    return [order.index(g) for g in groups]


def test_every_client_joins_the_group_that_is_likest_on_average():
    # Landmarks 1, 3, 4 in groups 0, 0, 1. Client 0: mean(0.9, 0.1) = 0.5 < 0.6, so group 1.
    # Client 2: mean(0.7, 0.8) = 0.75 > 0.6, so group 0. Client 5: 0.2 < 0.3, so group 1.
    similarity = np.array(
        [
            [0.9, 0.1, 0.6],
            [1.0, 0.9, 0.2],
            [0.7, 0.8, 0.6],
            [0.9, 1.0, 0.2],
            [0.2, 0.2, 1.0],
            [0.1, 0.3, 0.3],
        ]
    )

    found = assign_to_landmarks(similarity, np.array([1, 3, 4]), np.array([0, 0, 1]))

    # Client 0 is the smallest member of its group, which is therefore called 0.
    assert found.tolist() == [0, 1, 1, 1, 0, 0]


def test_a_tie_goes_to_the_lowest_group():
    similarity = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])

    assert assign_to_landmarks(similarity, np.array([0, 1]), np.array([0, 1])).tolist() == [0, 1, 0]


def test_a_landmark_keeps_its_group_even_when_another_is_likest():
    similarity = np.array([[1.0, 0.0, 0.9], [0.0, 1.0, 0.9], [0.9, 0.9, 1.0]])

    found = assign_to_landmarks(similarity, np.array([0, 1, 2]), np.array([0, 0, 1]))

    assert found.tolist() == [0, 0, 1]


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_groups_equal_the_slow_definition(xp, linkage):
    r, landmarks = random_answers(3, 20), np.array([2, 3, 7, 11, 12, 19])
    similarity = landmark_similarity(
        xp.asarray(r[:, landmarks]), xp.asarray(r[landmarks]), landmarks
    )

    found = group_by_landmarks(similarity, landmarks, 3, linkage)

    exact = np.asarray(symmetric(r))
    own = cluster(exact[np.ix_(landmarks, landmarks)], 3, linkage)
    assert found.dtype == np.int64
    assert found.tolist() == slow_assignment(exact[:, landmarks], landmarks, own.tolist())


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_everyone_a_landmark_is_the_exact_grouping(xp, linkage, count):
    r, everyone = random_answers(count, 9), np.arange(9)

    similarity = landmark_similarity(xp.asarray(r), xp.asarray(r), everyone)

    assert np.array_equal(np.asarray(similarity), symmetric(r))
    found = group_by_landmarks(similarity, everyone, count, linkage)
    assert (found == cluster(symmetric(r), count, linkage)).all()


def test_the_similarity_has_the_landmarks_columns_of_the_whole_matrix(xp):
    r, landmarks = random_answers(1, 8).astype(np.float32), np.array([1, 4, 6])

    found = landmark_similarity(xp.asarray(r[:, landmarks]), xp.asarray(r[landmarks]), landmarks)

    assert np.array_equal(np.asarray(found), symmetric(r)[:, landmarks])


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 12))
def test_there_are_exactly_as_many_groups_as_asked(seed, num_landmarks, count):
    count = min(count, num_landmarks)
    rng = np.random.default_rng(seed)
    landmarks = choose_landmarks(12, num_landmarks, rng)
    r = random_answers(seed, 12)

    similarity = landmark_similarity(r[:, landmarks], r[landmarks], landmarks)
    found = group_by_landmarks(similarity, landmarks, count)

    _, first = np.unique(found, return_index=True)
    assert len(first) == count
    assert (np.diff(first) > 0).all()  # numbered by the smallest member


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_landmarks_are_different_clients_in_ascending_order(seed, count):
    found = choose_landmarks(30, count, np.random.default_rng(seed))

    assert len(found) == count
    assert (np.diff(found) > 0).all()
    assert found.min() >= 0
    assert found.max() < 30


def test_one_client_is_its_own_landmark():
    one = landmark_similarity(np.array([[0.3]]), np.array([[0.3]]), np.array([0]))

    assert one.tolist() == [[1.0]]
    assert group_by_landmarks(one, np.array([0]), 1).tolist() == [0]


@pytest.mark.parametrize("count", [0, 6])
def test_an_impossible_number_of_landmarks_is_refused(count):
    with pytest.raises(ValueError, match=rf"1\.\.5.*got {count}.*landmarks"):
        choose_landmarks(5, count, np.random.default_rng(0))


def test_more_groups_than_landmarks_are_refused():
    with pytest.raises(ValueError, match=r"count must be in 1\.\.2"):
        group_by_landmarks(np.ones((4, 2)), np.array([0, 1]), 3)


def test_wrong_shapes_and_values_are_refused():
    landmarks = np.array([0, 1])

    with pytest.raises(ValueError, match=r"got \(3, 2\) and \(3, 2\)"):
        landmark_similarity(np.ones((3, 2)), np.ones((3, 2)), landmarks)
    with pytest.raises(ValueError, match=r"one column per landmark, got shape \(3, 3\)"):
        assign_to_landmarks(np.ones((3, 3)), landmarks, landmarks)
    with pytest.raises(ValueError, match="finite"):
        assign_to_landmarks(np.array([[1.0, np.nan]] * 3), landmarks, landmarks)

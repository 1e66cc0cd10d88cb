import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.clustering import cluster, merge_tree

# FB-NLL, Table II.
TABLE_II = np.array(
    [
        [1.00, 0.97, 0.31, 0.31, 0.32],
        [0.97, 1.00, 0.31, 0.32, 0.32],
        [0.31, 0.31, 1.00, 0.97, 0.98],
        [0.31, 0.32, 0.97, 1.00, 0.98],
        [0.32, 0.32, 0.98, 0.98, 1.00],
    ]
)


def random_similarity(seed, num_clients):
    half = np.random.default_rng(seed).uniform(0.0, 1.0, (num_clients, num_clients))
    matrix = (half + half.T) / 2
    np.fill_diagonal(matrix, 1.0)
    return matrix


def slow_clusters(similarity, count, linkage):
    """Merge the two closest groups until ``count`` are left; every distance anew from 1 - R."""
    combine = {"average": np.mean, "complete": np.max, "single": np.min}[linkage]
    groups = [[k] for k in range(len(similarity))]
    while len(groups) > count:
        gaps = {
            (a, b): combine([1.0 - similarity[i, j] for i in groups[a] for j in groups[b]])
            for a, b in itertools.combinations(range(len(groups)), 2)
        }
        a, b = min(gaps, key=gaps.get)
        groups[a] = groups[a] + groups.pop(b)
    labels = np.empty(len(similarity), dtype=np.int64)
    for group, members in enumerate(sorted(groups, key=min)):
        labels[members] = group
    return labels


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
@pytest.mark.parametrize("count", [1, 2, 4, 9])
def test_groups_equal_the_slow_merging(xp, linkage, count):
    similarity = random_similarity(count, 9)

    found = cluster(xp.asarray(similarity), count, linkage)

    assert isinstance(found, np.ndarray)
    assert found.dtype == np.int64
    assert (found == slow_clusters(similarity, count, linkage)).all()


def test_table_two_of_the_paper_gives_its_two_tasks():
    assert cluster(TABLE_II, count=2).tolist() == [0, 0, 1, 1, 1]


def test_groups_are_numbered_by_their_smallest_member():
    order = [4, 0, 3, 1, 2]

    assert cluster(TABLE_II[np.ix_(order, order)], count=2).tolist() == [0, 1, 0, 1, 0]


def test_the_merge_tree_has_the_distances_of_table_two():
    tree = merge_tree(TABLE_II)

    # Clients 3 and 5 (or 4 and 5), then the third of them, then 1 and 2, then all.
    assert tree.shape == (4, 4)
    assert tree[:, 2] == pytest.approx([0.02, 0.025, 0.03, 1 - np.mean(TABLE_II[:2, 2:])])


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_ties_still_give_exactly_the_asked_number(count, value):
    tied = np.full((6, 6), value)

    assert len(np.unique(cluster(tied, count))) == count


@given(st.integers(0, 10_000), st.permutations(range(7)))
def test_permuting_clients_permutes_the_groups(seed, order):
    similarity = random_similarity(seed, 7)

    plain, permuted = cluster(similarity, 3), cluster(similarity[np.ix_(order, order)], 3)

    together = plain[:, None] == plain[None, :]
    assert ((permuted[:, None] == permuted[None, :]) == together[np.ix_(order, order)]).all()


@given(st.integers(0, 10_000))
def test_fewer_groups_are_unions_of_more_groups(seed):
    similarity = random_similarity(seed, 8)

    fine, coarse = cluster(similarity, 4), cluster(similarity, 2)

    assert all(len(set(coarse[fine == group])) == 1 for group in range(4))


def test_one_client_is_one_group():
    assert cluster(np.array([[1.0]]), 1).tolist() == [0]
    assert merge_tree(np.array([[1.0]])).shape == (0, 4)


def test_as_many_groups_as_clients_leaves_everyone_alone():
    assert cluster(TABLE_II, 5).tolist() == [0, 1, 2, 3, 4]


def test_the_diagonal_is_ignored():
    zero_diagonal = TABLE_II - np.eye(5)

    assert cluster(zero_diagonal, 2).tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("similarity", "options", "message"),
    [
        (TABLE_II, {"count": 0}, r"1\.\.5.*got 0"),
        (TABLE_II, {"count": 6}, r"1\.\.5.*got 6"),
        (TABLE_II, {"count": 2, "linkage": "ward"}, "Euclidean"),
        (TABLE_II, {"count": 2, "linkage": "median"}, "one of average, complete, single"),
        (TABLE_II[:3], {"count": 2}, "square"),
        (np.ones((0, 0)), {"count": 1}, "square"),
        (np.triu(TABLE_II), {"count": 2}, "symmetric"),
        (TABLE_II * np.nan, {"count": 2}, "finite"),
    ],
)
def test_wrong_input_is_refused_with_a_reason(similarity, options, message):
    with pytest.raises(ValueError, match=message):
        cluster(similarity, **options)

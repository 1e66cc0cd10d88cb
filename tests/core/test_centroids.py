"""Class centroids: means, cosines and updates worked by hand, on every array library."""

import numpy as np
import pytest

from raysim.methods.rfl import class_means, cosine, merged, moved, nearest_class
from raysim.seeding import stream


def rows(xp, values):
    return xp.asarray(values, dtype=xp.float64)


def close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, atol=1e-12)


def test_means_by_class_are_zero_without_a_sample(xp):
    features = rows(xp, [[1.0, 2.0], [3.0, 0.0], [5.0, 5.0]])

    found = class_means(features, xp.asarray([2, 2, 0]), 4)

    close(found, [[5, 5], [0, 0], [2, 1], [0, 0]])


def test_means_of_no_sample_are_zero(xp):
    found = class_means(xp.zeros((0, 2), dtype=xp.float64), xp.zeros(0, dtype=xp.int64), 3)

    close(found, np.zeros((3, 2)))


def test_cosine_of_rows(xp):
    found = cosine(
        rows(xp, [[1, 0], [3, 4], [0, 0], [1, 1]]), rows(xp, [[2, 2], [6, 8], [1, 0], [-1, -1]])
    )

    close(found, [2**-0.5, 1.0, 0.0, -1.0])


def test_the_nearest_class_is_that_of_the_smallest_angle(xp):
    centroids = rows(xp, [[0, 0], [10, 0], [0, 0.1]])

    found = nearest_class(rows(xp, [[1, 0.9], [0.1, 5], [0, 0]]), centroids)

    # The length of a centroid does not count; nothing points nowhere, so the lowest class wins.
    assert [int(c) for c in found] == [1, 2, 0]


def test_a_centroid_moves_by_the_squared_cosine(xp):
    # cos((1, 0), (2, 2))^2 = 1/2; an opposite mean has cos^2 = 1; a right angle moves nothing.
    centroids = rows(xp, [[1, 0], [1, 0], [1, 0], [1, 0]])
    means = rows(xp, [[2, 2], [-3, 0], [0, 7], [0, 0]])

    close(moved(centroids, means), [[1.5, 1], [-3, 0], [1, 0], [1, 0]])


def test_merging_is_the_weighted_mean_and_keeps_what_has_no_weight(xp):
    # Class 0: (0.5 * (2, 0) + 1.5 * (0, 2)) / 2. Class 1: nobody agrees.
    weighted = rows(xp, [[1, 3], [0, 0]]) / 2
    received = rows(xp, [[9, 9], [7, 8]])

    close(merged(received, weighted, rows(xp, [1.0, 0.0])), [[0.5, 1.5], [7, 8]])


@pytest.mark.parametrize("classes", [1, 5])
def test_means_follow_the_slow_loop(xp, classes):
    rng = stream(0, "test.centroids")
    features, labels = rng.normal(size=(40, 3)), rng.integers(0, classes, 40)

    found = class_means(rows(xp, features), xp.asarray(labels), classes)

    close(found, [features[labels == c].mean(axis=0) for c in range(classes)])

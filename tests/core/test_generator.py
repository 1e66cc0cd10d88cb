"""Images drawn around those of a class: means, spread, range, and what is deterministic."""

import numpy as np

from raysim.core.generator import drawn_images
from raysim.seeding import stream

CENTERS = np.array([[3.0, 0.0, 0.0, 1.0], [-3.0, 0.0, 0.0, 1.0], [0.0, 4.0, 0.0, 1.0]])
SPREAD = np.array([0.5, 0.2, 0.1, 0.0])


def seen(count=400):
    labels = np.repeat([0, 2, 5], count)
    noise = stream(0, "test.generator").normal(size=(3 * count, 4)) * SPREAD
    return (np.repeat(CENTERS, count, axis=0) + noise).reshape(-1, 1, 2, 2), labels


def drawn(images, labels, *, per_class=3000, components=4):
    return drawn_images(
        images, labels, per_class=per_class, components=components, rng=stream(1, "test.generator")
    )


def test_every_class_keeps_its_mean_and_all_share_the_spread():
    images, labels = drawn(*seen())

    assert np.bincount(labels).tolist() == [3000, 0, 3000, 0, 0, 3000]
    for center, c in zip(CENTERS, (0, 2, 5), strict=True):
        own = images[labels == c].reshape(-1, 4)
        np.testing.assert_allclose(own.mean(axis=0), center, atol=0.1)  # of 400 images
        np.testing.assert_allclose(own.std(axis=0), SPREAD, atol=0.06)


def test_nothing_leaves_the_range_of_the_images():
    images, labels = seen(20)
    found, _ = drawn(images, labels)

    assert found.min() >= images.min()
    assert found.max() <= images.max()
    assert found.dtype == images.dtype
    assert found.shape[1:] == (1, 2, 2)


def test_few_components_flatten_the_rest():
    # Two directions tell three centres apart; the last pixel never varies.
    found, _ = drawn(*seen(), components=2)

    rank = np.linalg.matrix_rank(found.reshape(-1, 4) - found.reshape(-1, 4).mean(axis=0), tol=1e-3)
    assert rank == 2


def test_one_image_per_class_is_repeated():
    images = stream(0, "test.generator").normal(size=(3, 1, 2, 2)).astype(np.float32)

    found, labels = drawn(images, np.array([1, 0, 2]), per_class=2)

    np.testing.assert_allclose(found[labels == 1][0], images[0], atol=1e-5)
    np.testing.assert_allclose(found[labels == 0][1], images[1], atol=1e-5)


def test_equal_images_are_no_trouble():
    found, _ = drawn(np.ones((4, 1, 2, 2)), np.array([0, 0, 1, 1]), per_class=2)

    np.testing.assert_allclose(found, 1.0)

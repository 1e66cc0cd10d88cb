"""HoG against scikit-image, against its equations in a slow loop, and across array libraries."""

import itertools

import array_api_strict
import numpy as np
import pytest
import torch
from skimage.feature import hog as skimage_hog

import raysim.data.features.gradients as gradients
from raysim.data.features import hog
from raysim.errors import ConfigError
from raysim.seeding import stream

SKIMAGE_TOLERANCE = 1e-6  # scikit-image adds up a cell's votes in single precision


def by_skimage(images, orientations=9, cell=8, block=1):
    return np.stack(
        [
            skimage_hog(
                image,
                orientations,
                pixels_per_cell=(cell, cell),
                cells_per_block=(block, block),
                block_norm="L2-Hys",
                channel_axis=-1 if image.ndim == 3 else None,
            )
            for image in images
        ]
    )


def random_images(*shape, high=256):
    return stream(0, "test.hog", *shape).integers(0, high, shape, dtype=np.uint8)


def by_slow_loop(image, orientations, cell, block):
    """Dalal and Triggs, one pixel at a time, in double precision."""
    height, width, channels = image.shape
    down, across = height // cell, width // cell
    votes = np.zeros((down, across, orientations))
    for y, x in itertools.product(range(down * cell), range(across * cell)):
        best = (0.0, 0.0, 0.0)
        for c in range(channels):
            dy = image[y + 1, x, c] - image[y - 1, x, c] if 0 < y < height - 1 else 0.0
            dx = image[y, x + 1, c] - image[y, x - 1, c] if 0 < x < width - 1 else 0.0
            if np.hypot(dy, dx) > best[0]:
                best = (np.hypot(dy, dx), dy, dx)
        degrees = np.rad2deg(np.arctan2(best[1], best[2])) % 180
        bin_id = int(degrees // (180 / orientations))
        votes[y // cell, x // cell, bin_id] += best[0] / cell**2
    row = []
    for y, x in itertools.product(range(down - block + 1), range(across - block + 1)):
        values = votes[y : y + block, x : x + block].ravel()
        values = np.minimum(values / np.sqrt((values**2).sum() + 1e-10), 0.2)
        row.append(values / np.sqrt((values**2).sum() + 1e-10))
    return np.concatenate(row)


CASES = {
    "colour": ((40, 32, 32, 3), 9, 8, 1),
    "grey": ((40, 32, 32), 9, 8, 1),
    "grey 28x28": ((40, 28, 28), 9, 7, 1),
    "blocks of 2x2": ((20, 32, 32, 3), 9, 8, 2),
    "blocks of 3x3": ((20, 28, 28), 8, 7, 3),
    "odd sizes, pixels left over": ((20, 33, 47, 3), 9, 8, 2),
    "one channel": ((10, 16, 16, 1), 9, 4, 1),
    "one orientation": ((10, 16, 16, 2), 1, 4, 1),
    "borders at 45 and 135 degrees": ((20, 32, 32, 3), 28, 8, 1),
    "cells of one pixel": ((4, 5, 6, 3), 9, 1, 2),
    "one cell": ((4, 16, 16, 4), 9, 16, 1),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_hog_equals_scikit_image(case, dtype):
    shape, orientations, cell, block = CASES[case]
    images = random_images(*shape).astype(dtype)

    rows = hog(images, orientations, cell, block)

    expected = by_skimage(images, orientations, cell, block)
    assert rows.dtype == np.float64
    np.testing.assert_allclose(rows, expected, atol=SKIMAGE_TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_hog_equals_its_equations_to_rounding(dtype):
    images = random_images(3, 19, 24, 3).astype(dtype)

    rows = hog(images, 9, 5, 2)

    expected = np.stack([by_slow_loop(image.astype(float), 9, 5, 2) for image in images])
    np.testing.assert_allclose(rows, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_few_grey_levels_tie_channels_as_in_scikit_image(dtype):
    # with 4 levels most pixels have several channels of equal strength and other directions
    images = random_images(60, 32, 32, 3, high=4).astype(dtype)

    rows = hog(images, orientations=8)

    expected = by_skimage(images, orientations=8)
    np.testing.assert_allclose(rows, expected, atol=SKIMAGE_TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_strengths_that_only_rounding_tells_apart_choose_scikit_images_channel(dtype):
    # hypot need not be correctly rounded: here equal sums of squares may give unequal strengths
    sides = np.arange(256.0)
    squares = (sides[:, None] ** 2 + sides**2).astype(int)
    strengths = np.hypot(sides[:, None], sides)
    most = np.full(squares.max() + 1, -np.inf)
    np.maximum.at(most, squares, strengths)
    below = np.argwhere((strengths < most[squares]) & (sides[:, None] > 0) & (sides > 0))
    pairs = [
        ((y, x), (v, u))
        for y, x in below[:100]
        for v, u in np.argwhere((squares == squares[y, x]) & (strengths > strengths[y, x]))
    ] or [((3, 4), (5, 0)), ((7, 1), (5, 5)), ((16, 63), (33, 56))]
    images = np.zeros((2 * len(pairs), 3, 3, 2), np.uint8)
    for i, (first, second) in enumerate(pairs):
        for image, (a, b) in ((2 * i, (first, second)), (2 * i + 1, (second, first))):
            for channel, (dy, dx) in enumerate((a, b)):
                images[image, 2, 1, channel], images[image, 1, 2, channel] = dy, dx

    rows = hog(images.astype(dtype), orientations=90, cell=3)

    expected = by_skimage(images.astype(dtype), orientations=90, cell=3)
    np.testing.assert_allclose(rows, expected, atol=SKIMAGE_TOLERANCE, rtol=0)


def test_constant_images_have_no_gradient():
    images = np.full((2, 32, 32, 3), 200, np.uint8)

    assert np.array_equal(hog(images), np.zeros((2, 144)))
    assert np.array_equal(hog(images.astype(float)), np.zeros((2, 144)))


def test_a_ramp_to_the_right_votes_for_the_first_bin_only():
    # dx = 2, dy = 0: 0 degrees, bin 0. A block with one entry is (1, 0, ...), clipped to 0.2 and
    # scaled back to 1.
    image = np.tile(np.arange(16, dtype=np.uint8), (16, 1))

    rows = hog(image[None], orientations=9, cell=8).reshape(2, 2, 9)

    np.testing.assert_allclose(rows[..., 0], 1.0, atol=1e-8)
    assert (rows[..., 1:] == 0).all()


def test_an_angle_rounded_up_to_180_degrees_votes_for_no_bin():
    image = np.zeros((1, 4, 4))
    image[0] = np.arange(4.0)
    image[0, 0] += 1e-20  # dy = -1e-20, dx = 2
    image[0, 0, 0] = 1e-20

    np.testing.assert_allclose(hog(image, cell=4), by_skimage(image, cell=4), atol=1e-6)


@pytest.mark.parametrize("channels", [3, 65])
def test_bytes_and_doubles_give_the_same_rows(channels):
    images = random_images(5, 16, 16, channels)

    np.testing.assert_allclose(hog(images), hog(images.astype(float)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("xp", [torch, array_api_strict])
def test_other_array_libraries_give_the_same_rows(xp, dtype):
    images = random_images(6, 20, 24, 3).astype(dtype)

    rows = hog(xp.asarray(images), 9, 5, 2)

    assert type(rows) is type(xp.asarray(images))
    assert rows.dtype == xp.float64
    np.testing.assert_allclose(np.asarray(rows), hog(images, 9, 5, 2), atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("pixels", [1, 3 * 1024, 7 * 1024])
def test_a_row_does_not_depend_on_the_images_beside_it(pixels, dtype, monkeypatch):
    images = random_images(23, 32, 32, 3).astype(dtype)
    whole = hog(images)

    monkeypatch.setattr(gradients, "PIXELS_PER_CHUNK", pixels)

    assert np.array_equal(hog(images), whole)
    assert np.array_equal(hog(images[5:6]), whole[5:6])
    assert np.array_equal(hog(np.asfortranarray(images[::-2])), whole[::-2])


def test_no_images_give_no_rows():
    assert hog(np.zeros((0, 32, 32, 3), np.uint8)).shape == (0, 144)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cell": 33}, "cell must fit into images of 32x40 pixels, got 33; use at most 32"),
        ({"cell": 0}, "cell must be at least 1, got 0"),
        ({"orientations": 0}, "orientations must be at least 1, got 0"),
        ({"block": 0}, "block must be at least 1, got 0"),
        ({"block": 5}, "block must fit into 4x5 cells, got 5; use at most 4"),
    ],
)
def test_settings_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        hog(np.zeros((1, 32, 40), np.uint8), **arguments)


def test_a_single_image_without_its_axis_is_refused():
    with pytest.raises(ConfigError, match=r"images must have the shape .* got \(32, 32\); use"):
        hog(np.zeros((32, 32), np.uint8))

import numpy as np
import pytest

from raysim.models.augmentation import PADDING, augmented, cropped, flipped
from raysim.seeding import stream


def numbered(samples=64, channels=2, height=6, width=5):
    """Images without two equal pixels, and without a zero."""
    shape = (samples, channels, height, width)
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def test_about_half_of_the_images_are_mirrored_and_none_is_anything_else():
    images = numbered()

    found = flipped(images, stream(0, "flip"))

    mirrored = (found == images[..., ::-1]).all(axis=(1, 2, 3))
    assert (mirrored | (found == images).all(axis=(1, 2, 3))).all()
    assert 16 < mirrored.sum() < 48


def test_crops_are_shifts_filled_with_black():
    images = numbered()
    black = np.array([-0.4, -2.0], np.float32)
    found = cropped(images, stream(0, "crop"), black)

    shifts = set()
    for image, crop in zip(images, found, strict=True):
        around = ((PADDING, PADDING), (PADDING, PADDING))
        padded = np.stack(
            [np.pad(a, around, constant_values=b) for a, b in zip(image, black, strict=True)]
        )
        matches = [
            (top, left)
            for top in range(2 * PADDING + 1)
            for left in range(2 * PADDING + 1)
            if np.array_equal(padded[:, top : top + 6, left : left + 5], crop)
        ]
        assert matches
        shifts.update(matches)
    assert {top for top, _ in shifts} == set(range(9))
    assert {left for _, left in shifts} == set(range(9))


@pytest.mark.parametrize("kind", ["none", "flip", "crop_flip"])
def test_augmentation_keeps_shape_type_and_argument_and_follows_its_generator(kind):
    images = numbered()
    before = images.copy()

    one = augmented(images, kind, stream(0, "augment"))
    two = augmented(images, kind, stream(0, "augment"))

    assert (one.shape, one.dtype) == (images.shape, images.dtype)
    assert np.array_equal(one, two)
    assert np.array_equal(images, before)
    assert np.array_equal(one, images) == (kind == "none")

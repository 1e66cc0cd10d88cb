"""The choices of ``data.features`` that need no weights."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from raysim.data.features import FEATURES, HogFeatures, PixelFeatures, enlarged, hog
from raysim.errors import ConfigError
from raysim.seeding import stream


def random_images(*shape):
    return stream(0, "test.features", *shape).integers(0, 256, shape, dtype=np.uint8)


def test_every_extractor_can_be_chosen_by_name():
    assert FEATURES.names() == ["hog", "lite0", "pixels", "resnet18"]


@pytest.mark.parametrize(
    ("settings", "shape", "dimension"),
    [
        ({}, (32, 32, 3), 144),
        ({}, (28, 28, 1), 144),
        ({"block": 2}, (32, 32, 3), 324),
        ({"enlarge": 4}, (8, 8, 1), 144),
        ({"cell": 4}, (32, 32, 3), 576),
        ({"orientations": 8}, (33, 47, 3), 160),
    ],
)
def test_hog_rows_are_as_long_as_announced(settings, shape, dimension):
    extractor = HogFeatures(**settings)

    rows = extractor.extract(random_images(3, *shape))

    assert extractor.dimension(shape) == dimension
    assert rows.shape == (3, dimension)
    assert rows.dtype == np.float32


def test_hog_features_are_hog_with_a_quarter_of_the_side_as_cell():
    images = random_images(3, 28, 28, 1)

    assert np.array_equal(HogFeatures().extract(images), hog(images, cell=7).astype(np.float32))


def test_hog_of_enlarged_digits_sees_the_enlarged_images():
    images = random_images(3, 8, 8, 1)

    rows = HogFeatures(enlarge=4).extract(images)

    assert np.array_equal(rows, hog(enlarged(images, 4), cell=8).astype(np.float32))


@pytest.mark.parametrize(("shape", "factor"), [((8, 8, 1), 4), ((5, 7, 3), 3), ((1, 2, 1), 2)])
def test_enlarging_is_bilinear_about_pixel_centres(shape, factor):
    images = random_images(2, *shape)
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).double()
    expected = torch.nn.functional.interpolate(
        planes, scale_factor=factor, mode="bilinear", align_corners=False
    )

    large = enlarged(images, factor)

    np.testing.assert_allclose(large, expected.permute(0, 2, 3, 1).numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"cell": 33}, (32, 32, 3), r"data\.features\.cell must fit .* got 33; use at most 32"),
        ({"block": 5}, (32, 32, 3), r"data\.features\.block must fit into 4x4 cells, got 5; use"),
        ({}, (3, 9, 1), r"data\.features\.cell needs larger images, got '3x9 pixels'; set data"),
    ],
)
def test_hog_refuses_images_that_do_not_fit(settings, shape, message):
    extractor = HogFeatures(**settings)

    with pytest.raises(ConfigError, match=message):
        extractor.dimension(shape)


@pytest.mark.parametrize("name", ["orientations", "cell", "block", "enlarge"])
def test_hog_refuses_counts_below_one(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1,.* got 0"):
        HogFeatures(**{name: 0})


def test_hog_marks_an_image_whose_weak_channel_is_not_a_number():
    images = random_images(3, 16, 16, 3).astype(np.float32)
    images[1, 8, 8, 2] = np.nan

    rows = HogFeatures().extract(images)

    assert np.isnan(rows).all(axis=1).tolist() == [False, True, False]


def test_pixels_scale_bytes_and_leave_floats_alone():
    images = random_images(2, 4, 5, 3)
    floats = images.astype(np.float32) - 7

    extractor = PixelFeatures()

    assert extractor.dimension((4, 5, 3)) == 60
    np.testing.assert_allclose(extractor.extract(images), images.reshape(2, 60) / 255, rtol=1e-6)
    assert extractor.extract(images).dtype == np.float32
    assert np.array_equal(extractor.extract(floats), floats.reshape(2, 60))


def test_fingerprints_tell_settings_apart():
    variants = [
        HogFeatures(),
        HogFeatures(cell=8),
        HogFeatures(orientations=8),
        HogFeatures(block=2),
        HogFeatures(enlarge=4),
        PixelFeatures(),
    ]

    assert len({extractor.fingerprint() for extractor in variants}) == len(variants)


def test_extractors_survive_pickling():
    extractor = HogFeatures(orientations=8, cell=5)

    assert pickle.loads(pickle.dumps(extractor)) == extractor


@pytest.mark.process
def test_listing_extractors_and_hog_load_no_heavy_package():
    script = (
        "import sys, numpy as np\n"
        "from raysim.data.features import FEATURES\n"
        "FEATURES.names(); FEATURES.get('resnet18')(); FEATURES.get('lite0')()\n"
        "FEATURES.get('hog')().extract(np.zeros((1, 32, 32, 3), np.uint8))\n"
        "heavy = {'torch', 'torchvision', 'ray', 'sklearn', 'skimage', 'PIL', 'scipy'}\n"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")

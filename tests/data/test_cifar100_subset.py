"""The 10,000 images of CIFAR-100 that Table VII needs."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.data.datasets import data_root
from raysim.data.datasets.cifar100_subset import FILE, OTHERS, VEHICLES, Cifar100Subset
from raysim.errors import DataError
from raysim.seeding import stream
from raysim.settings import SettingError


@pytest.fixture
def folder(tmp_path):
    """A file of 40 images in the real layout."""
    rng = stream(0, "test")
    images = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    labels = np.tile([VEHICLES[0], OTHERS[0]], 20)
    np.savez(tmp_path / FILE, x=images, y=labels, index=np.arange(40))
    return tmp_path


def test_every_tenth_image_is_held_out_and_none_is_lost(folder):
    arrays = Cifar100Subset().load(folder)

    with np.load(folder / FILE) as file:
        images, labels = file["x"], file["y"]
    np.testing.assert_array_equal(arrays.test_images, images[9::10])
    np.testing.assert_array_equal(arrays.test_labels, labels[9::10])
    assert len(arrays.train_images) == 36
    assert len(arrays.class_names) == 100


def test_two_tasks_are_vehicles_and_the_rest():
    first, second = Cifar100Subset().tasks(2)

    assert len(first) == 10
    assert sorted(first + second) == list(range(100))
    assert Cifar100Subset().tasks(3) is None


def test_a_missing_file_names_the_set_that_can_be_fetched(tmp_path):
    with pytest.raises(DataError, match="raysim data fetch cifar100"):
        Cifar100Subset().ensure(tmp_path)


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_a_damaged_file_is_refused_with_its_name(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(DataError, match=FILE):
        Cifar100Subset().load(tmp_path)


def test_images_of_another_size_are_refused(tmp_path):
    np.savez(tmp_path / FILE, x=np.zeros((4, 28, 28), np.uint8), y=np.zeros(4, np.int64))

    with pytest.raises(DataError, match=r"x must be uint8 images"):
        Cifar100Subset().load(tmp_path)


def test_at_least_every_second_image_stays_in_training():
    with pytest.raises(SettingError, match="test_every must be at least 2"):
        Cifar100Subset(test_every=1)


@pytest.mark.data
def test_the_real_file_has_all_vehicles():
    if not (data_root(None) / FILE).is_file():
        pytest.skip(f"{FILE} is not there")

    arrays = Cifar100Subset().load(None)

    labels = np.concatenate([arrays.train_labels, arrays.test_labels])
    assert np.isin(labels, VEHICLES).sum() == 5000
    assert len(labels) == 10_000

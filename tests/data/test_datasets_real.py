"""The real sets, where this machine has them."""

import numpy as np
import pytest

from raysim.data.datasets import DATASETS, channel_statistics, data_root
from raysim.data.datasets.classes import CIFAR100_NAMES

pytestmark = pytest.mark.data

FACTS = {  # name: training images, test images, (H, W, C), labels per class if all equal
    "mnist": (60000, 10000, (28, 28, 1), None),
    "fashion_mnist": (60000, 10000, (28, 28, 1), 6000),
    "cifar10": (50000, 10000, (32, 32, 3), 5000),
    "svhn": (73257, 26032, (32, 32, 3), None),
}


def real(name):
    dataset = DATASETS.get(name)()
    if not dataset.sources(None):
        pytest.skip(f"{name} is not in {data_root(None)}; run `raysim data fetch {name}`")
    return dataset.load(None)


@pytest.mark.parametrize("name", FACTS)
def test_real_sets_have_the_published_sizes(name):
    num_train, num_test, shape, per_class = FACTS[name]

    arrays = real(name)

    assert arrays.train_images.shape == (num_train, *shape)
    assert arrays.test_images.shape == (num_test, *shape)
    counts = np.bincount(arrays.train_labels)
    assert len(counts) == 10
    assert per_class is None or (counts == per_class).all()


@pytest.mark.parametrize(("name", "digits"), [("mnist", 4), ("fashion_mnist", 4)])
def test_the_published_normalisation_is_that_of_the_pixels(name, digits):
    arrays = real(name)

    mean, std = channel_statistics(arrays.train_images)

    assert tuple(round(v, digits) for v in mean) == arrays.mean
    assert tuple(round(v, digits) for v in std) == arrays.std


def test_cifar100_names_agree_with_the_vehicles_of_the_real_set():
    path = data_root(None) / "cifar100_subset.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")

    with np.load(path, allow_pickle=False) as file:
        vehicles = {CIFAR100_NAMES[label] for label in file["y"][file["superclass_vehicle"]]}

    assert vehicles == {  # superclasses vehicles 1 and vehicles 2
        *("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
        *("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
    }

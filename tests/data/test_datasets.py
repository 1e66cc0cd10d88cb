"""The registry, the checks, the task tables and the two embedded sets."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raysim.data.datasets import DATASETS, channel_statistics, checked, data_root
from raysim.data.datasets.synthetic import orthonormal
from raysim.errors import ConfigError, DataError
from raysim.seeding import stream
from raysim.settings import SettingError

NAMES = [
    "cifar10",
    "cifar100",
    "cifar100_subset",
    "client_files",
    "clothing1m",
    "digits",
    "fashion_mnist",
    "image_folder",
    "mini_webvision",
    "mnist",
    "svhn",
    "synthetic",
]


def make(name, **settings):
    return DATASETS.get(name)(**settings)


def test_every_dataset_is_registered():
    assert DATASETS.names() == NAMES


def test_a_misspelled_dataset_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean mnist"):
        DATASETS.get("mnits")


@pytest.mark.process
def test_listing_the_datasets_loads_no_heavy_package():
    code = (
        "import sys; from raysim.data.datasets import DATASETS; DATASETS.names(); "
        "import raysim.data.store, raysim.data.truth, raysim.data.fetch; "
        "heavy = {'torch', 'torchvision', 'ray', 'sklearn', 'scipy', 'PIL', 'skimage'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.strip() == "[]"


@pytest.mark.process
@pytest.mark.parametrize(
    "module",
    [
        *(f"datasets.{name}" for name in ("synthetic", "standard", "client_files", "digits")),
        "fetch",
    ],
)
def test_modules_can_be_imported_in_any_order(module):
    code = f"import raysim.data.{module}; from raysim.data.datasets import DATASETS as d; d.names()"

    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["mnist", "svhn", "digits", "fashion_mnist", "cifar10"])
@pytest.mark.parametrize("groups", [2, 3, 5])
def test_tasks_divide_the_ten_classes(name, groups):
    tasks = make(name).tasks(groups)

    assert len(tasks) == groups
    assert sorted(label for task in tasks for label in task) == list(range(10))


def test_task_tables_are_the_papers():
    # RCC-PFL Table I, FB-NLL Table III: one entry of each set that the others do not share.
    assert make("mnist").tasks(3) == ((0, 2, 4), (6, 8, 1), (3, 5, 7, 9))
    assert make("fashion_mnist").tasks(2) == ((0, 1, 2, 3, 4, 6), (5, 7, 8, 9))
    assert make("cifar10").tasks(5) == ((0, 1), (8, 9), (2, 3), (4, 5), (6, 7))
    assert make("svhn").tasks(5) == make("digits").tasks(5) == make("mnist").tasks(5)


@pytest.mark.parametrize(("name", "groups"), [("mnist", 4), ("cifar100", 2), ("synthetic", 2)])
def test_without_a_published_table_there_are_no_tasks(name, groups):
    assert make(name).tasks(groups) is None


def test_data_root_prefers_the_setting_then_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path))

    assert data_root(Path("here")) == Path("here")
    assert data_root(None) == tmp_path
    monkeypatch.delenv("RAYSIM_DATA")
    assert data_root(None) == Path.home() / ".cache" / "raysim" / "data"


def test_channel_statistics_equal_the_plain_formula():
    images = stream(0, "test").integers(0, 256, (5000, 3, 2, 3), np.uint8)

    mean, std = channel_statistics(images)

    pixels = images.reshape(-1, 3) / 255
    np.testing.assert_allclose(mean, pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(0), rtol=1e-9)


def test_statistics_of_constant_images_do_not_divide_by_zero():
    assert channel_statistics(np.zeros((3, 2, 2, 1), np.uint8))[1][0] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_labels": np.zeros(3, np.int64)}, "one int64 per image"),
        ({"test_labels": np.zeros(0, np.int64)}, "one int64 per image"),
        ({"class_names": ("a", "b")}, r"in 0\.\.1, got 0\.\.9"),
        ({"test_images": np.zeros((355, 8, 8), np.uint8)}, "uint8 or float32"),
        ({"test_images": np.zeros((355, 9, 9, 1), np.uint8)}, "must be alike"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(change, message):
    arrays = make("digits").load(None)
    assert checked(arrays, "x") is arrays

    with pytest.raises(DataError, match=message):
        checked(replace(arrays, **change), "x")


def test_digits_are_all_there_and_split_by_class():
    arrays = make("digits").load(None)

    assert arrays.train_images.dtype == np.uint8
    assert arrays.train_images.shape[1:] == (8, 8, 1)
    assert len(arrays.train_images) + len(arrays.test_images) == 1797
    assert arrays.train_images.min() == 0
    assert arrays.train_images.max() == 255
    total = np.bincount(arrays.train_labels) + np.bincount(arrays.test_labels)
    assert (np.bincount(arrays.test_labels) == total // 5).all()


def test_digits_are_the_original_values_on_a_finer_scale():
    from sklearn.datasets import load_digits

    arrays = make("digits").load(None)

    # Image 0 of the file is the first of its class, hence in the training set.
    np.testing.assert_array_equal(
        np.rint(arrays.train_images[0, :, :, 0] * (16 / 255)), load_digits().images[0]
    )


def test_synthetic_samples_lie_near_their_own_subspace_only():
    dataset = make("synthetic", noise_std=0.05)
    arrays = dataset.load(None)
    rows = arrays.train_images.reshape(len(arrays.train_images), -1).astype(float)

    def outside(label, basis):
        own = rows[arrays.train_labels == label]
        rest = own - own @ basis @ basis.T
        return np.sqrt((rest**2).sum() / (own**2).sum())

    bases = [dataset.basis(label).astype(float) for label in range(10)]

    # Noise has 59 of 64 dimensions outside: sqrt(59 * 0.05^2 / (5 + 2^2)) = 0.13.
    assert max(outside(label, bases[label]) for label in range(10)) < 0.15
    assert min(outside(label, bases[(label + 1) % 10]) for label in range(10)) > 0.7


def test_synthetic_class_means_have_the_set_length():
    dataset = make("synthetic", per_class=4000, classes=2, separation=3.0)
    arrays = dataset.load(None)
    mean = arrays.train_images[arrays.train_labels == 1].mean(0).ravel()

    # 4000 samples, unit variance in 5 directions: the mean is off by about sqrt(5 / 4000) = 0.035.
    np.testing.assert_allclose(mean, 3.0 * dataset.basis(1)[:, 0], atol=0.1)


def test_synthetic_bases_are_orthonormal_even_for_nearly_parallel_vectors():
    vectors = np.ones((3, 8)) + 1e-7 * stream(0, "test").standard_normal((3, 8))

    basis = orthonormal(vectors)

    np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize(("dim", "shape"), [(64, (8, 8, 1)), (784, (28, 28, 1)), (50, (1, 50, 1))])
def test_synthetic_samples_are_square_images_where_they_can_be(dim, shape):
    arrays = make("synthetic", dim=dim, per_class=3, test_per_class=2).load(None)

    assert arrays.train_images.shape == (30, *shape)
    assert arrays.test_images.shape == (20, *shape)
    assert arrays.train_images.dtype == np.float32


def test_synthetic_sets_differ_by_seed_and_between_splits():
    first, again, other = (
        make("synthetic", data_seed=s, per_class=40).load(None) for s in (0, 0, 1)
    )

    np.testing.assert_array_equal(first.train_images, again.train_images)
    assert not np.array_equal(first.train_images, other.train_images)
    assert not np.array_equal(first.train_images, first.test_images)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"classes": 1}, "classes"),
        ({"subspace_rank": 65}, "subspace_rank"),
        ({"noise_std": -0.1}, "noise_std"),
        ({"noise_std": float("nan")}, "noise_std"),
        ({"test_per_class": 0}, "test_per_class"),
    ],
)
def test_synthetic_settings_out_of_range_name_the_field(settings, field):
    with pytest.raises(SettingError) as caught:
        make("synthetic", **settings)

    assert caught.value.field == field

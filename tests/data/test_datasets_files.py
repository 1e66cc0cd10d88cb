"""The published sets, read from small files in their real layouts."""

import pickle
import socket
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from raysim.data.datasets import DATASETS, checked, standard, torchvision_files
from raysim.data.datasets.standard import read_idx
from raysim.errors import DataError

SHAPES = {
    "mnist": (28, 28, 1),
    "fashion_mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "svhn": (32, 32, 3),
}


def load(name, root):
    return checked(DATASETS.get(name)().load(root), name)


def assert_same(arrays, expected):
    for ours, key in (("train_images", "x_train"), ("test_images", "x_test")):
        images = getattr(arrays, ours)
        np.testing.assert_array_equal(images, expected[key].reshape(images.shape))
        assert images.dtype == np.uint8
    np.testing.assert_array_equal(arrays.train_labels, expected["y_train"])
    np.testing.assert_array_equal(arrays.test_labels, expected["y_test"])


@pytest.mark.parametrize("name", SHAPES)
def test_npz_is_read_for_every_set(name, tmp_path, small_arrays):
    expected = small_arrays(SHAPES[name])
    np.savez(tmp_path / f"{name}.npz", **expected)

    arrays = load(name, tmp_path)

    assert_same(arrays, expected)
    assert arrays.train_images.shape[1:] == SHAPES[name]
    assert len(arrays.mean) == len(arrays.std) == SHAPES[name][-1]
    assert len(arrays.class_names) == (100 if name == "cifar100" else 10)
    assert DATASETS.get(name)().sources(tmp_path) == [tmp_path / f"{name}.npz"]


def test_grey_npz_may_lack_the_channel_axis(tmp_path, small_arrays):
    expected = small_arrays((28, 28))
    np.savez(tmp_path / "mnist.npz", **expected)

    assert load("mnist", tmp_path).train_images.shape == (12, 28, 28, 1)


def test_published_normalisation_is_used_where_known_and_computed_elsewhere(tmp_path, small_arrays):
    expected = small_arrays((32, 32, 3))
    np.savez(tmp_path / "cifar10.npz", **expected)
    np.savez(tmp_path / "svhn.npz", **expected)

    assert load("cifar10", tmp_path).std == (0.2023, 0.1994, 0.2010)  # ClipFL's
    np.testing.assert_allclose(
        load("svhn", tmp_path).mean, expected["x_train"].reshape(-1, 3).mean(0) / 255
    )


@pytest.mark.parametrize("gzipped", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")]
)
def test_idx_files_are_read_plain_and_gzipped(
    name, folder, gzipped, tmp_path, small_arrays, write_idx
):
    expected = small_arrays((28, 28))
    write_idx(tmp_path / folder / "raw", expected, gzipped=gzipped)

    assert_same(load(name, tmp_path), expected)
    assert len(DATASETS.get(name)().sources(tmp_path)) == 4


def cifar_batch(path: Path, images, labels, key):
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(pickle.dumps({"data": rows, key: labels.tolist()}))


@pytest.mark.parametrize(
    ("name", "classes", "key"), [("CIFAR10", 10, "labels"), ("CIFAR100", 100, "fine_labels")]
)
def test_cifar_pickles_are_read_in_order(name, classes, key, tmp_path, small_arrays, monkeypatch):
    import torchvision

    known = getattr(torchvision.datasets, name)
    for attribute in ("train_list", "test_list"):  # small files cannot have the official md5
        monkeypatch.setattr(known, attribute, [(n, None) for n, _ in getattr(known, attribute)])
    monkeypatch.setattr(known, "meta", {**known.meta, "md5": None})
    expected = small_arrays((32, 32, 3), classes=classes)
    folder = tmp_path / known.base_folder
    parts = np.array_split(np.arange(12), len(known.train_list))
    for (file, _), rows in zip(known.train_list, parts, strict=True):
        cifar_batch(folder / file, expected["x_train"][rows], expected["y_train"][rows], key)
    ((file, _),) = known.test_list
    cifar_batch(folder / file, expected["x_test"], expected["y_test"], key)
    (folder / known.meta["filename"]).write_bytes(pickle.dumps({known.meta["key"]: []}))

    assert_same(load(name.lower(), tmp_path), expected)


def test_svhn_mat_files_give_label_0_for_10(tmp_path, small_arrays, monkeypatch):
    import torchvision

    expected = small_arrays((32, 32, 3))
    splits = {}
    for split in ("train", "test"):
        labels = np.where(expected[f"y_{split}"] == 0, 10, expected[f"y_{split}"])
        images = expected[f"x_{split}"].transpose(1, 2, 3, 0)
        scipy.io.savemat(tmp_path / f"{split}_32x32.mat", {"X": images, "y": labels[:, None]})
        splits[split] = ["unused", f"{split}_32x32.mat", None]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", splits)

    assert_same(load("svhn", tmp_path), expected)


def test_files_that_torchvision_refuses_are_a_data_error(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}_32x32.mat").write_bytes(b"no mat file")

    with pytest.raises(DataError, match=r"SVHN cannot read .*fetch the files again"):
        load("svhn", tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_a_given_root_without_files_says_what_to_do(name, tmp_path, monkeypatch):
    monkeypatch.setattr(standard, "download", None)  # an attempt would be a TypeError

    with pytest.raises(DataError) as caught:
        load(name, tmp_path)

    message = str(caught.value)
    for part in (
        repr(name),
        str(tmp_path),
        f"{name}.npz",
        f"raysim data fetch {name}",
        "data.root",
    ):
        assert part in message


def test_an_incomplete_layout_counts_as_missing(tmp_path, small_arrays, write_idx):
    write_idx(tmp_path / "MNIST" / "raw", small_arrays((28, 28)))
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()

    assert DATASETS.get("mnist")().sources(tmp_path) == []
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((12, 16, 16, 3), np.uint8)}, "x_train must be uint8"),
        ({"x_test": np.zeros((6, 32, 32, 3))}, "got float64"),
        ({"y_train": np.zeros(11, np.int64)}, r"y_train must be integers \(12,\), one per image"),
        ({"y_train": np.full(12, 10)}, "must be classes 0 to 9, got 10 to 10"),
        ({"y_test": np.zeros(6)}, "y_test must be integers .* got float64"),
        ({"y_test": None}, "must hold x_test, y_test, got x_train, y_train, x_test; write .* y_t"),
        (
            {"y_test": np.array([{}] * 6)},
            "must be an npz of arrays, got: Object arrays",
        ),  # pickled objects must not be opened
    ],
)
def test_an_npz_that_is_wrong_inside_is_refused(change, message, tmp_path, small_arrays):
    arrays = {**small_arrays((32, 32, 3)), **change}
    np.savez(tmp_path / "cifar10.npz", **{k: v for k, v in arrays.items() if v is not None})

    with pytest.raises(DataError, match=message) as caught:
        load("cifar10", tmp_path)

    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\3\4 broken"])
def test_an_npz_that_cannot_be_opened_is_refused(content, tmp_path):
    (tmp_path / "cifar10.npz").write_bytes(content)

    with pytest.raises(DataError, match=r"cifar10\.npz must be an npz of arrays"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x02\x01", b"\0\0\x08\x03\0\0", b"text"]
)
def test_a_broken_idx_file_is_refused(content, tmp_path):
    (tmp_path / "file").write_bytes(content)

    with pytest.raises(DataError, match="fetch the file again"):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:10] + b"\xff" * 40 + b[50:]])
def test_a_damaged_gzip_file_is_refused(damage, tmp_path, small_arrays, write_idx):
    folder = tmp_path / "MNIST" / "raw"
    write_idx(folder, small_arrays((28, 28)), gzipped=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(DataError, match="fetch the file again"):
        load("mnist", tmp_path)


def test_without_root_missing_files_are_downloaded(
    own_cache, tmp_path, small_arrays, torchvision_mirror
):
    expected = small_arrays((28, 28))
    torchvision_mirror(expected)

    assert_same(load("mnist", None), expected)
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["MNIST"]


def test_a_failed_download_leaves_nothing_and_says_what_to_do(
    own_cache, tmp_path, serve_folder, monkeypatch
):
    import torchvision

    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", serve_folder(tmp_path) + "nowhere")

    with pytest.raises(DataError, match="raysim data fetch cifar10"):
        load("cifar10", None)

    assert list((tmp_path / "data").iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_a_server_that_never_answers_does_not_hang_the_download(own_cache, monkeypatch):
    import torchvision

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(torchvision_files, "_ANSWER_S", 0.2)
        monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", f"http://127.0.0.1:{port}/x")

        with pytest.raises(DataError, match="could not be downloaded"):
            load("cifar10", None)

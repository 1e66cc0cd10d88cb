"""The public image sets of the papers: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, SVHN.

Each is read from ``<name>.npz`` or from torchvision's file layout, whichever the folder holds;
without ``data.root`` missing files are downloaded with torchvision.
"""

from __future__ import annotations

import gzip
import logging
import math
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from raysim.data.datasets.classes import (
    CIFAR10_NAMES,
    CIFAR10_TASKS,
    CIFAR100_NAMES,
    DIGIT_NAMES,
    DIGIT_TASKS,
    FASHION_NAMES,
    FASHION_TASKS,
    Tasks,
)
from raysim.data.datasets.dataset import (
    DATASETS,
    Arrays,
    Dataset,
    NewArray,
    channel_statistics,
    data_root,
    in_memory,
    missing_files,
)
from raysim.data.datasets.torchvision_files import download, place, read_split
from raysim.errors import DataError
from raysim.settings import settings
from raysim.storage.labelled import read_labelled

log = logging.getLogger(__name__)

_FORM = "write the file again with np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class StandardSet(Dataset):
    """Finding and reading that the published sets share; a subclass says what is known of its own.

    The files are ``<name>.npz``, or torchvision's.
    """

    __slots__ = ()
    torchvision_class: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    """torchvision's file layout below the data folder."""
    image_shape: ClassVar[tuple[int, int, int]]
    class_names: ClassVar[tuple[str, ...]]
    normalisation: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = None
    """Published mean and std per channel; None: computed from the training images."""
    task_table: ClassVar[dict[int, Tasks]] = {}

    def ensure(self, root: Path | None) -> None:
        """Make sure the files are there; download them only when no ``root`` was given."""
        if self.sources(root):
            return
        name, folder = self.choice_name, data_root(root)
        expected = f"{name}.npz, or {', '.join(self.files)}" + " (plain or .gz)" * self._is_idx
        if root is not None:
            raise missing_files(name, folder, expected)
        log.info("downloading %s into %s", name, folder)
        try:
            place(self.download, folder)
        except (DataError, OSError) as error:
            raise missing_files(name, folder, expected, because=str(error)) from error

    def sources(self, root: Path | None) -> list[Path]:
        """Return the files to read: the npz, else the torchvision layout, else none."""
        folder = data_root(root)
        if (folder / f"{self.choice_name}.npz").is_file():
            return [folder / f"{self.choice_name}.npz"]
        endings = ("", ".gz") if self._is_idx else ("",)
        found = []
        for name in self.files:
            candidates = [folder / f"{name}{ending}" for ending in endings]
            found += [path for path in candidates if path.is_file()][:1]
        return found if len(found) == len(self.files) else []

    def download(self, work: Path) -> tuple[str, ...]:
        """Leave the files below ``work``, and return their names."""
        download(self.torchvision_class, work)
        return self.files

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the arrays in the order of the original files."""
        self.ensure(root)
        train, test = self._read(data_root(root), self.sources(root))
        if train[0].shape[1:] != self.image_shape:
            raise DataError(
                f"dataset {self.choice_name!r} in {data_root(root)}: images must be (N, H, W, C) "
                f"with (H, W, C) = {self.image_shape}, got {train[0].shape}; fetch the files again"
            )
        mean, std = self.normalisation or channel_statistics(train[0])
        return Arrays(*train, *test, class_names=self.class_names, mean=mean, std=std)

    def tasks(self, groups: int) -> Tasks | None:
        return self.task_table.get(groups)

    @property
    def _is_idx(self) -> bool:
        return self.files[0].endswith(IDX_FILES[0])

    def _read(self, folder: Path, files: list[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return images and labels of training and test."""
        if files[0].suffix == ".npz":
            like, classes = self.image_shape, len(self.class_names)
            names = (("x_train", "y_train"), ("x_test", "y_test"))
            return [
                read_labelled(files[0], pair, _FORM, shape=like, classes=classes) for pair in names
            ]
        if self._is_idx:
            read = [read_idx(path) for path in files]
            return [
                (images[..., None], labels.astype(np.int64))
                for images, labels in (read[:2], read[2:])
            ]
        return [read_split(self.torchvision_class, folder, train=train) for train in (True, False)]


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array in an idx file, plain or gzipped: magic number, dimensions, bytes."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; fetch the file again") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08":  # 8: unsigned bytes
        raise DataError(
            f"{path} must start like an idx file of bytes (00 00 08), got {data[:4].hex(' ')!r}; "
            "fetch the file again"
        )
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"{path} must hold {math.prod(shape)} bytes for shape {shape}, "
            f"got {len(data) - start}; fetch the file again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


@DATASETS.register("mnist")
@settings
class Mnist(StandardSet):
    """MNIST: 60,000 + 10,000 handwritten digits, 28x28 grey."""

    torchvision_class = "MNIST"
    files = tuple(f"MNIST/raw/{name}" for name in IDX_FILES)
    image_shape = (28, 28, 1)
    class_names = DIGIT_NAMES
    normalisation = ((0.1307,), (0.3081,))  # FedFixer, FedLSR
    task_table = DIGIT_TASKS


@DATASETS.register("fashion_mnist")
@settings
class FashionMnist(StandardSet):
    """Fashion-MNIST: 60,000 + 10,000 articles of clothing, 28x28 grey."""

    torchvision_class = "FashionMNIST"
    files = tuple(f"FashionMNIST/raw/{name}" for name in IDX_FILES)
    image_shape = (28, 28, 1)
    class_names = FASHION_NAMES
    normalisation = ((0.2860,), (0.3530,))  # of its training images
    task_table = FASHION_TASKS


@DATASETS.register("cifar10")
@settings
class Cifar10(StandardSet):
    """CIFAR-10: 50,000 + 10,000 photos, 32x32 colour."""

    torchvision_class = "CIFAR10"
    files = tuple(
        f"cifar-10-batches-py/{name}"
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta")
    )
    image_shape = (32, 32, 3)
    class_names = CIFAR10_NAMES
    # ClipFL's; the std of all pixels would be (0.247, 0.243, 0.262)
    normalisation = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    task_table = CIFAR10_TASKS


@DATASETS.register("cifar100")
@settings
class Cifar100(StandardSet):
    """CIFAR-100: 50,000 + 10,000 photos of 100 fine classes, 32x32 colour."""

    torchvision_class = "CIFAR100"
    files = tuple(f"cifar-100-python/{name}" for name in ("train", "test", "meta"))
    image_shape = (32, 32, 3)
    class_names = CIFAR100_NAMES
    normalisation = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))  # RHFL


@DATASETS.register("svhn")
@settings
class Svhn(StandardSet):
    """SVHN: 73,257 + 26,032 house-number digits, 32x32 colour, without the ``extra`` split."""

    torchvision_class = "SVHN"
    files = ("train_32x32.mat", "test_32x32.mat")
    image_shape = (32, 32, 3)
    class_names = DIGIT_NAMES
    task_table = DIGIT_TASKS

"""What a dataset is: the registry, the arrays it gives, and where its files are looked for."""
# N samples, H height, W width, C channels

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.errors import DataError
from raysim.settings import Registry

NewArray = Callable[[str, tuple[int, ...], Any], np.ndarray]
"""Makes the empty image array of a split: (``train`` or ``test``, shape, dtype) -> array.

The store passes one that lives on disk, so that a large set is never whole in memory.
"""

_CHUNK_ROWS = 4096  # bounds the temporaries of channel_statistics


@dataclass(frozen=True)
class Arrays:
    """A whole dataset: images (N, H, W, C) uint8 or float32, labels (N,) int64."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    """Per channel, on the [0, 1] scale for uint8 images."""
    std: tuple[float, ...]


class Dataset(ABC):
    """A configured dataset: frozen settings plus the reading of its files, if it has any."""

    __slots__ = ()
    choice_name: ClassVar[str]

    def ensure(self, root: Path | None) -> None:  # noqa: B027 - some sets have no files
        """Make sure the files are there; without ``root`` a downloadable set is downloaded."""

    def sources(self, root: Path | None) -> list[Path]:
        """Return the files that ``load`` would read; none for an embedded set."""
        return []

    @abstractmethod
    def load(self, root: Path | None, new_array: NewArray = ...) -> Arrays:
        """Return the arrays, which ``checked`` may refuse; ``new_array`` makes large images."""

    def tasks(self, groups: int) -> Tasks | None:
        """Return the published class sets of ``groups`` tasks; None: split the classes evenly."""
        return None


DATASETS: Registry[Dataset] = Registry("dataset", key="name", home="raysim.data.datasets")


def in_memory(split: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an empty array in memory: the default ``NewArray``."""
    return np.empty(shape, dtype)


def data_root(root: Path | None) -> Path:
    """Return the folder of data files: ``root``, $RAYSIM_DATA or ~/.cache/raysim/data."""
    if root is not None:
        return root.expanduser()
    return Path(os.environ.get("RAYSIM_DATA") or "~/.cache/raysim/data").expanduser()


def by_number(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts client2 before client10."""
    pieces = [piece for piece in re.split(r"(\d+)", name) if piece]
    return [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces]


def missing_files(name: str, folder: Path, expected: str, *, because: str = "") -> DataError:
    """Return the error for files that are not in ``folder``."""
    reason = f" ({because})" if because else ""
    return DataError(
        f"dataset {name!r} has no files in {folder}{reason}; expected there: {expected}; "
        f"run `raysim data fetch {name}` or set data.root to the folder that holds them"
    )


def checked(arrays: Arrays, what: str) -> Arrays:
    """Return ``arrays`` as they are if shapes, types and labels fit together."""
    classes = len(arrays.class_names)
    for split in ("train", "test"):
        images, labels = getattr(arrays, f"{split}_images"), getattr(arrays, f"{split}_labels")
        if images.ndim != 4 or images.dtype not in (np.uint8, np.float32) or not images.size:
            raise DataError(
                f"{what}: {split} images must be a non-empty uint8 or float32 (N, H, W, C) array, "
                f"got {images.dtype} {images.shape}; write them again in that form"
            )
        if labels.shape != (len(images),) or labels.dtype != np.int64:
            raise DataError(
                f"{what}: {split} labels must be one int64 per image ({len(images)}), "
                f"got {labels.dtype} {labels.shape}; write images and labels from the same list"
            )
        if labels.min() < 0 or labels.max() >= classes:
            raise DataError(
                f"{what}: {split} labels must be in 0..{classes - 1}, "
                f"got {labels.min()}..{labels.max()}; number the classes from 0"
            )
    train, test = arrays.train_images, arrays.test_images
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise DataError(
            f"{what}: training and test images must be alike, got {train.dtype} {train.shape[1:]} "
            f"and {test.dtype} {test.shape[1:]}; write both splits the same way"
        )
    return arrays


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of uint8 images, on the [0, 1] scale.

    The sums are integers, hence exact: every machine gets the same bits.
    """
    histogram = np.zeros((images.shape[-1], 256), np.int64)
    for start in range(0, len(images), _CHUNK_ROWS):
        part = images[start : start + _CHUNK_ROWS]
        for channel, counts in enumerate(histogram):
            counts += np.bincount(part[..., channel].ravel(), minlength=256)
    levels = np.arange(256)
    count = histogram.sum(axis=1)
    mean = (histogram * levels).sum(axis=1) / count
    variance = (histogram * levels**2).sum(axis=1) / count - mean**2
    variance = np.maximum(variance, 1e-12)  # a constant channel must not divide by 0
    return tuple((mean / 255).tolist()), tuple((np.sqrt(variance) / 255).tolist())

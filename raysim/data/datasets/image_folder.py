"""Photo sets: class folders (torchvision's ImageFolder layout), Clothing1M, mini-WebVision.

Photos are cropped to a centred square, resized and kept as uint8: every run reads the same pixels.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from raysim.data.datasets.classes import CLOTHING1M_NAMES
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
from raysim.data.datasets.photos import decode, photos_by_class
from raysim.errors import DataError
from raysim.settings import In, settings

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
Listing = tuple[list[Path], list[int]]
"""Image files of one split and their labels, in a fixed order."""
_FOLDER_LAYOUT = "train/<class>/*.jpg with test/<class>/*.jpg or val/<class>/*.jpg"


@dataclass(frozen=True)
class Splits:
    """Everything a photo set is made of; ``lists`` are the text files that were read."""

    class_names: tuple[str, ...]
    train: Listing
    test: Listing
    lists: tuple[Path, ...] = ()


@settings
class PhotoSet(Dataset):
    """Reading that the photo sets share; a subclass only says which files belong to which class."""

    size: Annotated[int, In("[8, 1024]")] = 64
    """Side of the square images, pixels; ImageNet networks want 224 (147 KiB an image)."""
    layout: ClassVar[str] = _FOLDER_LAYOUT
    normalisation: ClassVar[tuple[tuple[float, ...], tuple[float, ...]] | None] = None

    def splits(self, base: Path) -> Splits | None:
        """Return the files and labels below ``base``, or None if it holds no known layout."""
        return folder_splits(base)

    def folder(self, root: Path | None) -> Path:
        """Return this set's folder: ``<data folder>/<name>``; a given root may be it directly."""
        named = data_root(root) / self.choice_name
        return named if root is None or named.is_dir() else data_root(root)

    def ensure(self, root: Path | None) -> None:
        """Raise unless the files are there; photo sets are not downloaded."""
        self._found(root)

    def sources(self, root: Path | None) -> list[Path]:
        found = self._found(root)
        return [*found.lists, *found.train[0], *found.test[0]]

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the photos as (N, size, size, 3) uint8."""
        found = self._found(root)
        read: list[tuple[np.ndarray, np.ndarray]] = []
        for split, (paths, labels) in (("train", found.train), ("test", found.test)):
            images = new_array(split, (len(paths), self.size, self.size, 3), np.uint8)
            decode(paths, images)
            read.append((images, np.array(labels, np.int64)))
        train, test = read
        mean, std = self.normalisation or channel_statistics(train[0])
        return Arrays(*train, *test, class_names=found.class_names, mean=mean, std=std)

    def _found(self, root: Path | None) -> Splits:
        base = self.folder(root)
        found = self.splits(base)
        if found is None:
            raise DataError(
                f"dataset {self.choice_name!r} has no files in {base}; expected there: "
                f"{self.layout}; it cannot be downloaded: put the files there, or set data.root "
                "to their folder"
            )
        return found


@DATASETS.register("image_folder")
@settings
class ImageFolder(PhotoSet):
    """Any photos, sorted into train/<class>/ and test/<class>/ (or val/)."""


@DATASETS.register("clothing1m")
@settings
class Clothing1M(PhotoSet):
    """Clothing1M: a million web photos, 14 classes, labels noisy by nature (about 38 % wrong).

    Training labels of the noisy split are the given ones; no truth is known for them.
    """

    train_split: Literal["noisy", "clean"] = "noisy"
    """Which official key list is the training set; folders have only one."""
    layout = (
        f"images/ with noisy_train_key_list.txt, noisy_label_kv.txt, clean_train_key_list.txt, "
        f"clean_test_key_list.txt and clean_label_kv.txt (beside it or in annotations/), or "
        f"{_FOLDER_LAYOUT} of 14 classes"
    )
    normalisation = IMAGENET  # ours: its models start from ImageNet weights

    def splits(self, base: Path) -> Splits | None:
        """Return the official key lists' files, or else those of 14 class folders."""
        lists = base / "annotations" if (base / "annotations").is_dir() else base
        if (lists / f"{self.train_split}_train_key_list.txt").is_file():
            return _clothing_splits(base, lists, self.train_split)
        found = folder_splits(base)
        if found is not None and len(found.class_names) != len(CLOTHING1M_NAMES):
            raise DataError(
                f"{base / 'train'} must hold Clothing1M's {len(CLOTHING1M_NAMES)} class folders, "
                f"got {len(found.class_names)}; use the dataset image_folder for other photos"
            )
        return found


@DATASETS.register("mini_webvision")
@settings
class MiniWebVision(PhotoSet):
    """mini-WebVision: the first 50 classes of WebVision 1.0, tested on its validation photos."""

    classes: Annotated[int, In("[2, inf)")] = 50
    """How many class folders, in their order (numbers as numbers, other names by letters)."""
    normalisation = IMAGENET  # ours: as for Clothing1M

    def splits(self, base: Path) -> Splits | None:
        found = folder_splits(base, first=self.classes)
        if found is not None and len(found.class_names) < self.classes:
            raise DataError(
                f"{base / 'train'} must hold at least {self.classes} class folders, "
                f"got {len(found.class_names)}; add the others or lower data.dataset.classes"
            )
        return found


def folder_splits(base: Path, first: int | None = None) -> Splits | None:
    """Return the files of train/<class>/ and test/<class>/ (or val/); None if not so laid out.

    With ``first`` only that many classes are used, and test folders of other classes are ignored.
    """
    train = base / "train"
    test = next((base / name for name in ("test", "val") if (base / name).is_dir()), None)
    if test is None or not train.is_dir():
        return None
    names = sorted(class_folders(train))
    if first:  # numbers as numbers, behind all other names
        names = sorted(names, key=lambda name: (int(name) if name.isdigit() else -1, name))[:first]
    strangers = [] if first else sorted(set(class_folders(test)) - set(names))
    if strangers:
        raise DataError(
            f"{test} must hold classes of {train} only, got also {', '.join(strangers[:5])}; "
            "remove them or add training photos of the same name"
        )
    found = photos_by_class(train, names)
    empty = sorted(set(range(len(names))) - set(found[1]))
    if empty:
        name = train / names[empty[0]]
        raise DataError(f"{name} must hold photos, got none; add some or remove it")
    return Splits(tuple(names), found, photos_by_class(test, names))


def class_folders(folder: Path) -> list[str]:
    return [entry.name for entry in os.scandir(folder) if entry.is_dir()]


def _clothing_splits(base: Path, lists: Path, train_split: str) -> Splits:
    listings: list[Listing] = []
    read = []
    for labels, keys in ((train_split, f"{train_split}_train"), ("clean", "clean_test")):
        label_file, key_file = lists / f"{labels}_label_kv.txt", lists / f"{keys}_key_list.txt"
        label_of = {}
        for line in _lines(label_file):
            key, *label = line.split()
            if len(label) != 1 or not label[0].isdecimal():
                raise DataError(
                    f"{label_file} must have lines `<key> <class number>`, got {line[:60]!r}; use "
                    "the official list"
                )
            label_of[key] = int(label[0])
        chosen = [key.strip() for key in _lines(key_file)]
        absent = [key for key in chosen if key not in label_of]
        if absent:
            raise DataError(
                f"{label_file} must label every key of {key_file.name}, {len(absent)} are missing, "
                f"first {absent[0]!r}; use lists of the same release"
            )
        listings.append(([base / key for key in chosen], [label_of[key] for key in chosen]))
        read += [label_file, key_file]
    return Splits(CLOTHING1M_NAMES, listings[0], listings[1], tuple(dict.fromkeys(read)))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise missing_files("clothing1m", path.parent, path.name)
    return [line for line in path.read_text().splitlines() if line.strip()]

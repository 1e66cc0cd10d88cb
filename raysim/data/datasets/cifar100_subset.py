"""Ten thousand training images of CIFAR-100: what FB-NLL's Table VII needs of it, in one file.

All 5,000 images of the ten vehicle classes and 5,000 of the other classes, for machines that do not
reach the servers of the whole set (``cifar100``). The file has no test images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from raysim.data.datasets.classes import CIFAR100_NAMES, CIFAR100_SUPERCLASSES, Tasks
from raysim.data.datasets.dataset import (
    DATASETS,
    Arrays,
    Dataset,
    NewArray,
    data_root,
    in_memory,
)
from raysim.errors import DataError
from raysim.settings import In, settings
from raysim.storage.labelled import read_labelled

FILE = "cifar100_subset.npz"
VEHICLES = tuple(sorted((*CIFAR100_SUPERCLASSES[-2], *CIFAR100_SUPERCLASSES[-1])))
"""Classes of the superclasses vehicles 1 and vehicles 2 (Krizhevsky 2009)."""
OTHERS = tuple(c for c in range(len(CIFAR100_NAMES)) if c not in VEHICLES)


@DATASETS.register("cifar100_subset")
@settings
class Cifar100Subset(Dataset):
    """CIFAR-100, 10,000 training images: all vehicles and as many others, 32x32 colour."""

    test_every: Annotated[int, In("[2, inf)")] = 10  # ours: the file has training images only
    """Every n-th image is held out as the test set."""

    def ensure(self, root: Path | None) -> None:
        """Refuse a folder without the file; it is in no public place to be fetched from."""
        if not self.sources(root):
            raise DataError(
                f"dataset 'cifar100_subset' has no files in {data_root(root)}; expected there: "
                f"{FILE} with x and y; copy it there, or use the whole set: "
                "`raysim data fetch cifar100`"
            )

    def sources(self, root: Path | None) -> list[Path]:
        path = data_root(root) / FILE
        return [path] if path.is_file() else []

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the arrays, both splits in the order of the file."""
        self.ensure(root)
        (path,) = self.sources(root)
        names, shape, classes = ("x", "y"), (32, 32, 3), len(CIFAR100_NAMES)
        images, labels = read_labelled(path, names, "copy it again", shape=shape, classes=classes)
        is_test = np.arange(len(labels)) % self.test_every == self.test_every - 1
        return Arrays(
            train_images=images[~is_test],
            train_labels=labels[~is_test],
            test_images=images[is_test],
            test_labels=labels[is_test],
            class_names=CIFAR100_NAMES,
            mean=(0.5071, 0.4865, 0.4409),  # of the whole set
            std=(0.2673, 0.2564, 0.2762),
        )

    def tasks(self, groups: int) -> Tasks | None:
        return (VEHICLES, OTHERS) if groups == 2 else None

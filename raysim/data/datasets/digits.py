"""The embedded default: scikit-learn's 1,797 real handwritten digits; nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysim.data.datasets.classes import DIGIT_NAMES, DIGIT_TASKS, Tasks
from raysim.data.datasets.dataset import (
    DATASETS,
    Arrays,
    Dataset,
    NewArray,
    channel_statistics,
    in_memory,
)
from raysim.settings import settings


@DATASETS.register("digits")
@settings
class Digits(Dataset):
    """Digits, 8x8 grey; the test set is every 5th image of each class, in file order."""

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the arrays; the 17 grey levels are spread over 0..255."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        labels = bunch.target.astype(np.int64)
        test = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            test[np.flatnonzero(labels == label)[4::5]] = True
        mean, std = channel_statistics(images[~test])
        return Arrays(
            train_images=images[~test],
            train_labels=labels[~test],
            test_images=images[test],
            test_labels=labels[test],
            class_names=DIGIT_NAMES,
            mean=mean,
            std=std,
        )

    def tasks(self, groups: int) -> Tasks | None:
        return DIGIT_TASKS.get(groups)

"""The embedded default: scikit-learn's 1,797 real handwritten digits; nothing to download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raysim.data.datasets.dataset import DATASETS, Arrays, NewArray, channel_statistics, in_memory
from raysim.data.datasets.task_classes import DIGIT_TASKS, Tasks
from raysim.settings import settings

_TEST_EVERY = 5


@DATASETS.register("digits")
@settings
class Digits:
    """Digits, 8x8 grey; the test set is every 5th image of each class, in file order."""

    def ensure(self, root: Path | None) -> None:
        """Do nothing: the images come with scikit-learn."""

    def sources(self, root: Path | None) -> list[Path]:
        """Return no file: the images come with scikit-learn."""
        return []

    def load(self, root: Path | None, new_array: NewArray = in_memory) -> Arrays:
        """Return the arrays; the 17 grey levels are spread over 0..255."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        labels = bunch.target.astype(np.int64)
        test = _every_nth_of_its_class(labels)
        mean, std = channel_statistics(images[~test])
        return Arrays(
            train_images=images[~test],
            train_labels=labels[~test],
            test_images=images[test],
            test_labels=labels[test],
            class_names=tuple(str(digit) for digit in range(10)),
            mean=mean,
            std=std,
        )

    def tasks(self, groups: int) -> Tasks | None:
        """Return the papers' tasks of the digit sets."""
        return DIGIT_TASKS.get(groups)


def _every_nth_of_its_class(labels: np.ndarray) -> np.ndarray:
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[_TEST_EVERY - 1 :: _TEST_EVERY]] = True
    return test

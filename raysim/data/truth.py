"""The true training labels: kept apart from the image store, opened by the driver only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raysim.errors import DataError
from raysim.storage.files import read_array, write_whole

if TYPE_CHECKING:
    from raysim.data.store import ImageStore


def true_labels(store: ImageStore) -> np.ndarray:
    """Return the true training labels (N,) int64 of the images in ``store``."""
    path = truth_file(store.folder.parents[1], store.digest)

    def say(wrong: str) -> str:
        return (
            f"the true labels of dataset {store.name!r} cannot be read from {path}: {wrong}; "
            "start the run again, which writes them again"
        )

    labels = read_array(path, say)
    if labels.shape != (store.num_train,) or labels.dtype != np.int64:
        raise DataError(
            f"{path} must hold {store.num_train} int64 labels, got {labels.dtype} {labels.shape}; "
            "remove the file and start the run again"
        )
    return labels


def truth_file(cache: Path, digest: str) -> Path:
    """Return where the true labels of the data with ``digest`` are kept."""
    return cache / "truth" / f"{digest}.npy"


def write_truth(cache: Path, digest: str, labels: np.ndarray) -> None:
    """Keep ``labels`` for ``true_labels``."""
    write_whole(truth_file(cache, digest), lambda file: np.save(file, labels))

"""Prepared files: ``<name>.npz`` with x_train, y_train, x_test and y_test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from raysim.errors import DataError

KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path, image_shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Return the four arrays: images (N, H, W, C) uint8 of ``image_shape``, labels (N,) int64."""
    arrays = _read(path)
    for key in ("x_train", "x_test"):
        images = arrays[key]
        grey = image_shape[-1] == 1 and images.ndim == 3
        arrays[key] = images[..., None] if grey else images
        if images.dtype != np.uint8 or arrays[key].shape[1:] != image_shape:
            raise DataError(
                f"{path}: {key} must be uint8 images (N, H, W, C), (H, W, C) = {image_shape}, "
                f"got {images.dtype} {images.shape}; write the file again in that form"
            )
    for key in ("y_train", "y_test"):
        if not np.issubdtype(arrays[key].dtype, np.integer):
            raise DataError(
                f"{path}: {key} must hold integers, got {arrays[key].dtype}; write class numbers"
            )
        arrays[key] = arrays[key].astype(np.int64, copy=False)
    return arrays


def _read(path: Path) -> dict[str, np.ndarray]:
    # allow_pickle=False: a data file must not be able to run code.
    try:
        with np.load(path, allow_pickle=False) as file:
            absent = [key for key in KEYS if key not in file.files]
            found = ", ".join(file.files)
            arrays = {} if absent else {key: file[key] for key in KEYS}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} must be an npz file of plain arrays, got: {error}; fetch or write it again"
        ) from error
    if absent:
        raise DataError(
            f"{path} must hold {', '.join(KEYS)}, got {found or 'nothing'}; write it with "
            "np.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    return arrays

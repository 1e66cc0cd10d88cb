"""Images and class numbers out of npz files: one way to read them and to say what is wrong.

``what`` names the array in a message, ``do`` is what its owner should do about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from raysim.errors import DataError
from raysim.storage.files import open_arrays


def read_members(
    path: Path, names: Sequence[str], do: str, *, perhaps: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Return the arrays ``names`` of an npz, and of ``perhaps`` those it has; no other is read."""

    def say(wrong: str) -> str:
        return f"{path} must be an npz of arrays, got: {wrong}; {do}"

    with open_arrays(path, say) as file:
        held = file.files
        found = {name: file[name] for name in (*names, *perhaps) if name in held}
    if not found.keys() >= set(names):
        raise DataError(
            f"{path} must hold {', '.join(names)}, got {', '.join(held) or 'nothing'}; {do}"
        )
    return found


def read_labelled(
    path: Path,
    names: tuple[str, str],
    do: str,
    *,
    shape: tuple[int, int, int] | None = None,
    classes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, H, W, C) uint8 and labels (N,) int64 that an npz has by these names."""
    stored, numbers = read_members(path, names, do).values()
    images = as_images(stored, f"{path}: {names[0]}", do, shape=shape)
    what = f"{path}: {names[1]}"
    return images, as_labels(numbers, what, do, count=len(images), classes=classes)


def as_images(
    images: np.ndarray,
    what: str,
    do: str,
    *,
    shape: tuple[int, int, int] | None = None,
    floats: bool = False,
) -> np.ndarray:
    """Return images (N, H, W, C), uint8 or, with ``floats``, float32; grey ones may lack C."""
    kinds = "uint8 or float" if floats else "uint8"
    form = "(N, H, W, C)" if shape is None else f"(N, {', '.join(map(str, shape))})"
    full = images[..., None] if images.ndim == 3 and (shape is None or shape[2] == 1) else images
    is_kind = images.dtype == np.uint8 or (floats and images.dtype.kind == "f")
    if full.ndim != 4 or not is_kind or (shape is not None and full.shape[1:] != shape):
        raise DataError(
            f"{what} must be {kinds} images {form}, got {images.dtype} {images.shape}; {do}"
        )
    if images.dtype == np.uint8:
        return full
    full = full.astype(np.float32)
    if not np.isfinite(full).all():
        raise DataError(f"{what} must be finite, got NaN or infinity; clean them")
    return full


def as_labels(
    labels: np.ndarray, what: str, do: str, *, count: int | None = None, classes: int | None = None
) -> np.ndarray:
    """Return class numbers (N,) int64, ``count`` of them and below ``classes`` where given."""
    right = labels.ndim == 1 and (len(labels) > 0 if count is None else len(labels) == count)
    if not right or labels.dtype.kind not in "iu":
        many = "(N,)" if count is None else f"({count},), one per image"
        raise DataError(f"{what} must be integers {many}, got {labels.dtype} {labels.shape}; {do}")
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or (classes is not None and high >= classes):
        known = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise DataError(f"{what} must be classes {known}, got {low} to {high}; {do}")
    return labels.astype(np.int64, copy=False)

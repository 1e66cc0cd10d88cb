"""Photos: found in folders, read, and brought to one shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raysim.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOS = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".gif", ".tif", ".tiff", ".webp"}
MODES = {1: "L", 3: "RGB"}
"""Pillow's name of a photo with so many channels."""
_BLOCK = 1024


def photos_below(folder: Path) -> list[Path]:
    """Return the photos at any depth, sorted."""
    return sorted(
        Path(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in PHOTOS
    )


def photos_by_class(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    """Return the photos below ``folder/<class>/`` and their class numbers, class by class."""
    found = [(path, c) for c, name in enumerate(classes) for path in photos_below(folder / name)]
    return [path for path, _ in found], [label for _, label in found]


def open_photo(path: Path) -> Image:
    """Return the decoded photo."""
    from PIL import Image

    try:
        with Image.open(path) as photo:
            photo.load()
    except Exception as wrong:  # Pillow raises anything for a damaged file
        raise DataError(
            f"{path} must be a readable image, got: {wrong}; replace or remove it"
        ) from wrong
    return photo


def fitted(photo: Image, shape: tuple[int, int, int], name: str) -> np.ndarray:
    """Return (H, W, C) uint8: a centred cut of that shape, resized."""
    from PIL import Image, ImageOps

    height, width, channels = shape
    if photo.mode.startswith(("I", "F")):  # a conversion would cut values above 255
        raise DataError(
            f"{name} must have 8 bits per channel, got mode {photo.mode}; convert it first"
        )
    plain = photo.convert(MODES[channels])
    cut = ImageOps.fit(plain, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(cut).reshape(shape)


def decode(paths: Sequence[Path], images: np.ndarray) -> None:
    """Write the photos of ``paths`` into ``images`` (N, H, W, C)."""
    shape = images.shape[1:]

    def read(row: int) -> None:
        images[row] = fitted(open_photo(paths[row]), shape, str(paths[row]))

    # Threads: Pillow lets go of the interpreter lock while it decodes and resizes.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(paths), _BLOCK):  # a million pending calls need a gigabyte
            list(pool.map(read, range(start, min(start + _BLOCK, len(paths)))))

"""Label-free features of images: HoG, raw pixels, and (in ``pretrained``) ImageNet networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.data.features.extractor import FEATURES, ImageShape
from raysim.data.features.hog import hog, hog_dimension
from raysim.settings import check, settings


@FEATURES.register("hog")
@settings
class HogFeatures:
    """Histograms of oriented gradients; 4x4 cells and 9 orientations give d = 144."""

    orientations: int = 9
    cell: int | None = None
    """Side of a cell in pixels; null: a quarter of the shorter side (8 for 32x32, 7 for 28x28)."""
    block: int = 1
    """Side of a block in cells."""
    enlarge: int = 1
    """Whole factor by which images are enlarged (bilinear) before; 4 suits the 8x8 digits."""

    def __post_init__(self) -> None:
        for name in ("orientations", "block", "enlarge"):
            count = getattr(self, name)
            check(count >= 1, name, "must be at least 1", got=count)
        check(self.cell is None or self.cell >= 1, "cell", "must be at least 1", got=self.cell)

    def dimension(self, image_shape: ImageShape) -> int:
        """Length of a HoG row."""
        height, width = image_shape[0] * self.enlarge, image_shape[1] * self.enlarge
        return hog_dimension(
            (height, width),
            orientations=self.orientations,
            cell=self._cell(height, width),
            block=self.block,
            section="data.features.",
        )

    def extract(self, images: np.ndarray) -> np.ndarray:
        """HoG rows, float32; on a GPU if CuPy finds one."""
        if self.enlarge > 1:
            images = enlarged(images, self.enlarge)
        xp = _fastest_library()
        cell = self._cell(*images.shape[1:3])
        rows = hog(xp.asarray(images), self.orientations, cell, self.block)
        rows = np.asarray(rows if xp is np else xp.asnumpy(rows), dtype=np.float32)
        if images.dtype != np.uint8:
            # a channel that is not a number may lose against another: do not let it pass unseen
            rows[~np.isfinite(images).all(axis=(1, 2, 3))] = np.nan
        return rows

    def fingerprint(self) -> str:
        """Kind and settings."""
        return (
            f"hog/1 orientations={self.orientations} cell={self.cell} block={self.block} "
            f"enlarge={self.enlarge}"
        )

    def check_available(self) -> None:
        """Nothing is needed."""

    def _cell(self, height: int, width: int) -> int:
        if self.cell is not None:
            return self.cell
        size = f"{height}x{width} pixels"
        do = "set data.features.enlarge so that the shorter side has at least 4 pixels"
        check(min(height, width) >= 4, "data.features.cell", "needs larger images", got=size, do=do)
        return min(height, width) // 4


@FEATURES.register("pixels")
@settings
class PixelFeatures:
    """The image itself, flattened: bytes scaled to [0, 1], floating-point values as they are."""

    def dimension(self, image_shape: ImageShape) -> int:
        """Return the number of values in an image."""
        return int(np.prod(image_shape))

    def extract(self, images: np.ndarray) -> np.ndarray:
        """Flattened images, float32."""
        rows = np.asarray(images).reshape(len(images), -1)
        if rows.dtype == np.uint8:
            return rows.astype(np.float32) / np.float32(255)
        return rows.astype(np.float32)

    def view(self, images: np.ndarray) -> np.ndarray | None:
        """Return the rows without a copy where the images already hold them, else None."""
        if images.dtype != np.float32 or not images.flags.c_contiguous:
            return None
        return images.reshape(len(images), -1)

    def fingerprint(self) -> str:
        """Kind."""
        return "pixels/1"

    def check_available(self) -> None:
        """Nothing is needed."""


def enlarged(images: np.ndarray, factor: int) -> np.ndarray:
    """Images (N, factor * H, factor * W, C) float64, bilinear; pixel centres keep their places.

    Samples outside the outermost centres take the border's value (``align_corners=False``).
    """
    for axis in (1, 2):
        size = images.shape[axis]
        place = np.clip((np.arange(size * factor) + 0.5) / factor - 0.5, 0, size - 1)
        below = np.minimum(place.astype(np.int64), max(size - 2, 0))
        above = np.minimum(below + 1, size - 1)
        share = (place - below).reshape((-1, 1, 1) if axis == 1 else (-1, 1))
        images = np.take(images, below, axis) * (1 - share) + np.take(images, above, axis) * share
    return images


def _fastest_library() -> Any:
    """CuPy where it finds a GPU, else NumPy."""
    try:
        import cupy
    except ImportError:
        return np
    return cupy if cupy.is_available() else np

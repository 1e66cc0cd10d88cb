"""What a feature extractor is: the registry, and the plainest one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from raysim.settings import Registry, settings

ImageShape = tuple[int, int, int]
"""Height, width, channels."""


class Extractor(ABC):
    """Frozen settings that turn raw images into feature rows, without a label."""

    __slots__ = ()
    choice_name: ClassVar[str]

    @abstractmethod
    def dimension(self, image_shape: ImageShape) -> int:
        """Length of a feature row; refuses settings that do not fit such images."""

    @abstractmethod
    def extract(self, images: np.ndarray) -> np.ndarray:
        """Return rows (N, D) float32 of raw images (N, H, W, C); a row depends on one image."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Kind, settings and weights in one line: equal fingerprints give equal features."""

    def check_available(self) -> None:  # noqa: B027 - most need nothing
        """Raise ``DataError`` if weights or packages are missing; called before any work starts."""


FEATURES: Registry[Extractor] = Registry(
    "feature extractor", key="kind", home="raysim.data.features"
)


@FEATURES.register("pixels")
@settings
class PixelFeatures(Extractor):
    """The image itself, flattened: bytes scaled to [0, 1], floating-point values as they are."""

    def dimension(self, image_shape: ImageShape) -> int:
        return int(np.prod(image_shape))

    def extract(self, images: np.ndarray) -> np.ndarray:
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
        return "pixels/1"

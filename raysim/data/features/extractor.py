"""What a feature extractor is, and the list of those a config may choose from."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from raysim.settings import Registry

ImageShape = tuple[int, int, int]
"""Height, width, channels."""


class Extractor(Protocol):
    """Frozen settings that turn raw images into feature rows, without a label."""

    def dimension(self, image_shape: ImageShape) -> int:
        """Length of a feature row; refuses settings that do not fit such images."""
        ...

    def extract(self, images: np.ndarray) -> np.ndarray:
        """Return rows (N, D) float32 of raw images (N, H, W, C); a row depends on one image."""
        ...

    def fingerprint(self) -> str:
        """Kind, settings and weights in one line: equal fingerprints give equal features."""
        ...

    def check_available(self) -> None:
        """Raise ``DataError`` if weights or packages are missing; called before any work starts."""
        ...


FEATURES: Registry[Extractor] = Registry(
    "feature extractor", key="kind", home="raysim.data.features"
)

"""Random changes of training images (N, channels, height, width), drawn sample by sample."""

from __future__ import annotations

import numpy as np

PADDING = 4  # raysim/docs/sheets/models.md, "Normalisation and augmentation in the papers"


def augmented(
    images: np.ndarray, kind: str, rng: np.random.Generator, black: np.ndarray | None = None
) -> np.ndarray:
    """Return the images changed as ``train.augment`` asks; the argument is left alone.

    ``black`` (channels,) is what crops move in; None: 0, the mean colour of normalised images.
    """
    if kind == "none":
        return images
    return flipped(images if kind == "flip" else cropped(images, rng, black), rng)


def flipped(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the images, each mirrored left to right with probability one half."""
    mirror = rng.random(len(images)) < 0.5
    return np.where(mirror[:, None, None, None], images[..., ::-1], images)


def cropped(
    images: np.ndarray, rng: np.random.Generator, black: np.ndarray | None = None
) -> np.ndarray:
    """Return the images shifted by up to 4 pixels each way; ``black`` moves in."""
    count, channels, height, width = images.shape
    wide = np.empty(
        (count, channels, height + 2 * PADDING, width + 2 * PADDING), dtype=images.dtype
    )
    wide[:] = 0.0 if black is None else black[:, None, None]
    wide[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    windows = np.lib.stride_tricks.sliding_window_view(wide, (height, width), axis=(2, 3))
    tops, lefts = rng.integers(0, 2 * PADDING + 1, size=(2, len(images)))
    return windows[np.arange(len(images)), :, tops, lefts]

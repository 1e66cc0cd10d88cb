"""Images drawn from one Gaussian per class in a space of few dimensions.

A stand-in where a generative model would be: what it draws are blurred blends of what it has seen.
N images, C classes, Q components.
"""

from __future__ import annotations

import numpy as np

from raysim.core.spectra import spectrum


def drawn_images(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    per_class: int,
    components: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``per_class`` new images for every class that ``images`` (N, ...) have, and labels.

    Every class has the mean of its images and all share the spread within classes, both in the
    ``components`` leading principal components; nothing leaves the range of the images. A class's
    draws are its mean where no class has two images.
    """
    rows = images.reshape(len(images), -1).astype(np.float64)
    center = rows.mean(axis=0)
    basis = spectrum(rows - center).vectors[:, :components]  # (D, Q)
    codes = (rows - center) @ basis
    found = np.unique(labels)
    means = np.stack([codes[labels == c].mean(axis=0) for c in found])
    within = codes - means[np.searchsorted(found, labels)]
    spread = within.T @ within / max(len(rows) - len(found), 1)
    values, vectors = np.linalg.eigh(spread)
    noise = rng.normal(size=(len(found), per_class, len(values)))
    moved = (noise * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    drawn = (means[:, None] + moved).reshape(-1, len(values)) @ basis.T + center
    drawn = drawn.clip(rows.min(), rows.max()).astype(images.dtype)
    return drawn.reshape(-1, *images.shape[1:]), np.repeat(found, per_class)

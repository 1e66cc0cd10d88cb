"""Class centroids of features and how they move (Robust FL). N samples, C classes, D features.

Arrays of any library; noisy_label_losses.md section 6.
"""

from __future__ import annotations

from array_api_compat import array_namespace, device

from raysim.core.spectra import Array

SMALLEST_NORM = 1e-12
"""Of a vector that has a direction."""


def class_means(features: Array, labels: Array, classes: int) -> Array:
    """Return the mean feature of each class (C, D); zeros for a class without a sample."""
    xp = array_namespace(features, labels)
    own = xp.arange(classes, device=device(labels))[:, None] == labels[None, :]
    shares = xp.astype(own, features.dtype)
    counts = xp.sum(shares, axis=1)
    return (shares @ features) / xp.clip(counts, 1.0, None)[:, None]


def cosine(first: Array, second: Array) -> Array:
    """Return the cosine of each row of one (N, D) with that row of the other; 0 for zero rows."""
    xp = array_namespace(first, second)
    return xp.sum(_unit(first) * _unit(second), axis=1)


def nearest_class(features: Array, centroids: Array) -> Array:
    """Return the class (N,) whose centroid has the largest cosine; of several the lowest."""
    xp = array_namespace(features, centroids)
    return xp.argmax(_unit(features) @ xp.matrix_transpose(_unit(centroids)), axis=1)


def moved(centroids: Array, means: Array) -> Array:
    """Return (1 - s^2) f + s^2 fhat with s = cos(f, fhat), class by class (C, D).

    A class without a sample has zeros for a mean, so s is 0 and its centroid stays.
    """
    share = (cosine(centroids, means) ** 2)[:, None]
    return (1.0 - share) * centroids + share * means


def merged(received: Array, weighted: Array, agreement: Array) -> Array:
    """Return sum_k w_k f_k / sum_k w_k from the two sums (or means), class by class (C, D).

    ``received`` where nobody has a weight.
    """
    xp = array_namespace(received, weighted, agreement)
    has = agreement > SMALLEST_NORM
    means = weighted / xp.where(has, agreement, xp.ones_like(agreement))[:, None]
    return xp.where(has[:, None], means, received)


def _unit(rows: Array) -> Array:
    xp = array_namespace(rows)
    norms = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    return rows / xp.clip(norms, SMALLEST_NORM, None)

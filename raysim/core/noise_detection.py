"""Signs of wrong labels in a model's outputs: LID, two Gaussians, small losses (FedCorr).

N samples, C classes, k neighbours.
"""

from __future__ import annotations

import numpy as np

TINY = 1e-6
CHUNK = 1024
"""Rows of the distance matrix held at a time."""


def local_intrinsic_dimension(probabilities: np.ndarray, neighbours: int = 20) -> float:
    """Return the mean LID of softmax outputs (N, C) among themselves (FedCorr, Eq. 2).

    -(1/k sum_j log(d_ij / d_ik))^-1 over the k nearest OTHER samples. One neighbour says nothing,
    its ratio is 1: 0 with fewer than three samples.
    """
    count = len(probabilities)
    k = min(neighbours, count - 1)
    if k < 2:
        return 0.0
    points = probabilities.astype(np.float64)
    found = [
        _dimensions(points[at : at + CHUNK], points, np.arange(at, min(at + CHUNK, count)), k)
        for at in range(0, count, CHUNK)
    ]
    return float(np.concatenate(found).mean())


def _dimensions(rows: np.ndarray, points: np.ndarray, own: np.ndarray, k: int) -> np.ndarray:
    squared = (rows**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - 2.0 * rows @ points.T
    distance = np.sqrt(np.maximum(squared, 0.0))
    distance[np.arange(len(rows)), own] = -1.0  # the sample itself comes first and is skipped
    nearest = np.sort(np.partition(distance, k, axis=1)[:, : k + 1], axis=1)[:, 1:]
    ratio = nearest / (nearest[:, -1:] + TINY) + TINY
    total: np.ndarray = np.log(ratio).mean(axis=1)
    return -1.0 / (total - TINY)  # log of a ratio below one is negative; never zero


def upper_component(values: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return which values (N,) belong to the Gaussian of larger mean, of a mixture of two.

    Nothing does where the values cannot be told apart (fewer than two, or all equal).
    """
    if len(values) < 2 or np.ptp(values) == 0:
        return np.zeros(len(values), dtype=bool)
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    column = np.asarray(values, dtype=np.float64)[:, None]
    with threadpool_limits(limits=1):  # k-means adds over threads: other bits for another number
        mixture = GaussianMixture(n_components=2, random_state=seed).fit(column)
        found: np.ndarray = mixture.predict(column)
    return np.asarray(found == int(np.argmax(mixture.means_[:, 0])))


def doubtful(losses: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the ``count`` largest losses; the lower position wins a tie."""
    order: np.ndarray = np.argsort(-losses, kind="stable")
    return order[:count]


def confident_labels(
    probabilities: np.ndarray, labels: np.ndarray, candidates: np.ndarray, threshold: float
) -> np.ndarray:
    """Return labels with those of confident candidates replaced by the predicted class."""
    sure = candidates[probabilities[candidates].max(axis=1) > threshold]
    new = labels.copy()
    new[sure] = probabilities[sure].argmax(axis=1)
    return new

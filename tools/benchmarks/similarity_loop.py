"""Reference: FB-NLL Eq. 2-6 for one pair of clients, in float64, as the equations are written.

Fixed, do not tune for raysim.
"""

from __future__ import annotations

import numpy as np


def eigenpairs(features: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Sigma = Phi^T Phi / n, its ``rank`` largest eigenvalues and their vectors (Eq. 2)."""
    phi = features.astype(np.float64)
    sigma = phi.T @ phi / len(phi)
    values, vectors = np.linalg.eigh(sigma)
    return sigma, values[::-1][:rank], vectors[:, ::-1][:, :rank]


def relevance(sigma: np.ndarray, values: np.ndarray, foreign: np.ndarray) -> float:
    """Return r(k, j) of the client with ``sigma`` against j's eigenvectors (Eq. 3-5)."""
    product = 1.0
    for i, value in enumerate(values):
        energy = float(np.linalg.norm(sigma @ foreign[:, i]))  # Eq. (3)
        product *= min(value, energy) / max(value, energy)  # Eq. (4)
    return float(product ** (1 / len(values)))  # Eq. (5)


def similarity(ours: np.ndarray, theirs: np.ndarray, rank: int) -> float:
    """Return R of two clients from their feature rows (Eq. 6)."""
    sigma_k, values_k, vectors_k = eigenpairs(ours, rank)
    sigma_j, values_j, vectors_j = eigenpairs(theirs, rank)
    return (relevance(sigma_k, values_k, vectors_j) + relevance(sigma_j, values_j, vectors_k)) / 2

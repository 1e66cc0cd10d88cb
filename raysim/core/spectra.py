"""Spectral decomposition of feature covariances (FB-NLL Eq. 2, RCC-PFL Eq. 1).

The papers' covariance is Phi^T Phi / n, the second moment of the features: no mean is subtracted.

Shapes: N samples, D dimensions, R kept directions.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_cupy_array, is_torch_array, to_device

Array = Any
"""An array of NumPy, CuPy, torch or any other namespace of the array API standard."""

EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A spectral signature: leading eigenpairs of Phi^T Phi / n, and that matrix or its factor."""

    values: Array
    """Eigenvalues (R,), descending, none negative."""
    vectors: Array
    """Their orthonormal eigenvectors (D, R)."""
    moment: Array | None = None
    """Phi^T Phi / n (D, D); None when ``factor`` stands for it."""
    factor: Array | None = None
    """Phi / sqrt(n) (N, D), kept instead of ``moment`` when N < D: smaller, and just as exact."""

    def __post_init__(self) -> None:
        if (self.moment is None) == (self.factor is None):
            raise ValueError("a Spectrum needs a moment or a factor, got both or none; give one")

    @property
    def dimension(self) -> int:
        """Number of feature dimensions D."""
        return int(self.vectors.shape[0])

    @property
    def rank(self) -> int:
        """Number of kept directions R."""
        return int(self.vectors.shape[1])


def spectrum(features: Array, rank: int | None = None, threshold: float | None = None) -> Spectrum:
    """Return the top eigenpairs of the covariance of ``features``, not centred (FB-NLL Eq. 2).

    Algorithm 1, lines 5-6; Procedure 1, lines 4-6; RCC-PFL Eq. 1 and Procedure 1, line 3.

    Parameters
    ----------
    features
        One row per sample (N, D); computed with in float64 whatever its type.
    rank
        How many directions to keep; capped, with a warning, when there are fewer samples.
    threshold
        Keep only eigenvalues of at least this fraction of the largest one.

    Notes
    -----
    With N < D the N x N Gram matrix is decomposed instead, which cannot give directions of
    eigenvalue zero: they are left out there, while N >= D returns all D directions. All-zero
    features keep one direction, the first axis, so that no spectrum is empty.
    """
    _check_features(features)
    xp = array_namespace(features)
    num_samples, dimension = features.shape
    _check_request(rank, threshold, dimension)
    features = xp.astype(features, xp.float64)
    if not bool(xp.all(xp.isfinite(features))):
        raise ValueError("features must be finite, got NaN or infinity; clean them first")
    if num_samples >= dimension:
        moment = (features.T @ features) / num_samples  # Sigma, Eq. 2
        values, vectors = _descending_eigenpairs(moment)
        keep = _num_kept(values, rank, threshold)
        return Spectrum(values[:keep], vectors[:, :keep], moment=moment)
    factor = features / math.sqrt(num_samples)
    values, sides = _descending_eigenpairs(factor @ factor.T)
    above_noise = values > dimension * EPSILON * values[0]
    available = max(1, int(xp.sum(xp.astype(above_noise, xp.int64))))
    values, sides = values[:available], sides[:, :available]
    if rank is not None and rank > available:
        warnings.warn(
            f"rank {rank} is more than {num_samples} samples can carry; "
            f"continuing with rank {available}",
            stacklevel=2,
        )
    keep = _num_kept(values, rank, threshold)
    return Spectrum(values[:keep], _lift(factor, sides[:, :keep]), factor=factor)


def spectra(
    features: Sequence[Array], rank: int | None = None, threshold: float | None = None
) -> list[Spectrum]:
    """Return the ``spectrum`` of every client's features (Algorithm 1, lines 4-7)."""
    return [spectrum(own, rank, threshold) for own in features]


def truncate(spectrum: Spectrum, rank: int) -> Spectrum:
    """Return ``spectrum`` with only its first ``rank`` directions."""
    if not 1 <= rank <= spectrum.rank:
        raise ValueError(
            f"rank must be in 1..{spectrum.rank}, the directions this spectrum has, got {rank}; "
            "lower it or compute the spectrum with more"
        )
    return dataclasses.replace(
        spectrum, values=spectrum.values[:rank], vectors=spectrum.vectors[:, :rank]
    )


def as_numpy(array: Array) -> np.ndarray:
    """Return ``array`` as a NumPy array on the host."""
    if is_torch_array(array) or is_cupy_array(array):
        array = to_device(array, "cpu")
    return np.asarray(array)


def _descending_eigenpairs(matrix: Array) -> tuple[Array, Array]:
    xp = array_namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    values = xp.where(values > 0, values, xp.zeros_like(values))  # rounding may give -1e-17
    return xp.flip(values, axis=0), xp.flip(vectors, axis=1)


def _lift(factor: Array, sides: Array) -> Array:
    """Return the D-dimensional unit eigenvectors that belong to Gram-side ones (N, R).

    QR rather than a division by the norm: rounding leaves about eps * sqrt(largest / value) of
    the first direction in a weak one, which would swamp its response (Eq. 3).
    """
    xp = array_namespace(factor)
    vectors = factor.T @ sides
    if bool(xp.all(vectors == 0)):
        return xp.eye(factor.shape[1], 1, dtype=xp.float64, device=device(factor))
    return xp.linalg.qr(vectors)[0]


def _num_kept(values: Array, rank: int | None, threshold: float | None) -> int:
    xp = array_namespace(values)
    keep = int(values.shape[0]) if rank is None else min(rank, int(values.shape[0]))
    if threshold is None:
        return keep
    strong = values >= threshold * values[0]
    return min(keep, int(xp.sum(xp.astype(strong, xp.int64))))


def _check_features(features: Array) -> None:
    if features.ndim != 2:
        raise ValueError(
            f"features must be 2-D (samples, dimensions), got shape {tuple(features.shape)}; "
            "reshape them to one row per sample"
        )
    if 0 in features.shape:
        raise ValueError(
            f"features must hold at least one sample and one dimension, got shape "
            f"{tuple(features.shape)}; leave out clients and classes without samples"
        )


def _check_request(rank: int | None, threshold: float | None, dimension: int) -> None:
    if rank is not None and not 1 <= rank <= dimension:
        raise ValueError(
            f"rank must be in 1..{dimension}, the feature dimension, got {rank}; change rank"
        )
    if threshold is not None and not 0.0 <= threshold <= 1.0:
        raise ValueError(
            f"threshold must be in [0, 1], a fraction of the largest eigenvalue, got {threshold}; "
            "change threshold"
        )

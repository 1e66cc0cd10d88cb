"""Spectral similarity of data sets: FB-NLL Eq. 3-6 and Procedure 1, RCC-PFL Eq. 2-5.

First come the equations as printed, in float64. The label correction uses them, and so does the
grouping where float32 is not enough. Then come the fast forms, in float32, by which clients
compare themselves in a run (``steps.relevance``). Both agree up to rounding.

Shapes: D dimensions, Q compared directions, J other data sets, K clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from raysim.core.spectra import EPSILON, Array, Spectrum

SMALLEST_RATIO = 1e-12
"""Floor of s_i: one direction without any match must not send the whole product to zero."""
SMALLEST_SHARE = 1e-3
"""Part of the largest square that float32 sums of many terms still know to about 1e-4."""


# ---- the equations as printed, float64 -----------------------------------------------------------


def response(spectrum: Spectrum, vectors: Array) -> Array:
    """Return e_i = ||Sigma v_i||, the spectral response to foreign eigenvectors (Eq. 3).

    Procedure 1, lines 8-11. RCC-PFL's estimated eigenvalue: Eq. 2, Procedure 1, line 9.

    Parameters
    ----------
    spectrum
        The data set that responds, with its covariance Sigma.
    vectors
        Eigenvectors of one other data set (D, Q) or of several (J, D, Q). A stack made as
        ``permute_dims(rows, (0, 2, 1))`` of contiguous rows (J, Q, D) is used without a copy.

    Returns
    -------
    Array
        Norms (Q,) or (J, Q).
    """
    xp = array_namespace(spectrum.vectors)
    if vectors.ndim not in (2, 3) or vectors.shape[-2] != spectrum.dimension:
        raise ValueError(
            f"vectors must be ({spectrum.dimension}, Q) or (J, {spectrum.dimension}, Q), got "
            f"shape {tuple(vectors.shape)}; use the same features on both sides"
        )
    stacked = xp.astype(xp.matrix_transpose(vectors), xp.float64, copy=False)
    rows = xp.reshape(stacked, (-1, spectrum.dimension))  # one product for all vectors
    if spectrum.factor is not None:
        mapped = (rows @ spectrum.factor.T) @ spectrum.factor
    else:
        mapped = rows @ spectrum.moment  # Sigma is symmetric
    norms = xp.sqrt(xp.sum(mapped * mapped, axis=1))  # Eq. 3
    return xp.reshape(norms, tuple(stacked.shape[:-1]))


def ratios(spectrum: Spectrum, vectors: Array) -> Array:
    """Return s_i = min(lambda_i, e_i) / max(lambda_i, e_i), at least 1e-12, (Q,) or (J, Q) (Eq. 4).

    Eigenvalues and responses up to D * eps * lambda_1 are rounding noise and count as zero.
    Where both are zero they agree, so s_i = 1: a direction in which neither data set varies
    does not set them apart. Procedure 1, lines 12-15; RCC-PFL Eq. 3, Procedure 1, line 10.
    """
    num_directions = int(vectors.shape[-1])
    if not 1 <= num_directions <= spectrum.rank:
        raise ValueError(
            f"vectors must have 1..{spectrum.rank} columns, the directions of the spectrum, got "
            f"{num_directions}; cut them to the common rank"
        )
    xp = array_namespace(spectrum.values)
    noise = spectrum.dimension * EPSILON * spectrum.values[0]
    energies = _without_noise(response(spectrum, vectors), noise)
    values = _without_noise(spectrum.values[:num_directions], noise)
    values = xp.broadcast_to(values, energies.shape)
    low, high = xp.minimum(values, energies), xp.maximum(values, energies)
    ones = xp.ones_like(high)
    ratio = xp.where(high > 0, low / xp.where(high > 0, high, ones), ones)  # Eq. 4
    return xp.clip(ratio, min=SMALLEST_RATIO)


def _without_noise(values: Array, noise: Array) -> Array:
    xp = array_namespace(values)
    return xp.where(values > noise, values, xp.zeros_like(values))


def relevance(spectrum: Spectrum, vectors: Array) -> Array:
    """Return r(k, j), the geometric mean of the ratios s_i, of shape () or (J,) (Eq. 5).

    The relevance of the data set with these eigenvectors to the one with this spectrum: Procedure
    1, lines 16-17, with all that comes before. RCC-PFL Eq. 4, Procedure 1, line 11.
    """
    xp = array_namespace(spectrum.values)
    return xp.exp(xp.mean(xp.log(ratios(spectrum, vectors)), axis=-1))


def relevance_by_rank(spectrum: Spectrum, vectors: Array) -> Array:
    """Return r(k, j) for the first 1, 2, ..., Q directions, (J, Q) (Eq. 5; FB-NLL Fig. 5)."""
    xp = array_namespace(spectrum.values)
    logs = xp.log(ratios(spectrum, vectors))
    counts = xp.arange(1, logs.shape[-1] + 1, dtype=logs.dtype, device=device(logs))
    return xp.exp(xp.cumulative_sum(logs, axis=-1) / counts)


def symmetric(r: Array) -> Array:
    """Return R = (r + r^T) / 2 with unit diagonal (Eq. 6; RCC-PFL Eq. 5, Procedure 1, line 14)."""
    if r.ndim != 2 or r.shape[0] != r.shape[1]:
        raise ValueError(
            f"r must be square, one row per client, got shape {tuple(r.shape)}; "
            "stack one row of relevances per client"
        )
    xp = array_namespace(r)
    ids = xp.arange(r.shape[0], device=device(r))
    return xp.where(ids[:, None] == ids[None, :], xp.ones_like(r), (r + r.T) / 2)


def similarity_matrix(spectra: Sequence[Spectrum], rank: int | None = None) -> Array:
    """Return the similarity matrix R of all clients (K, K) (Eq. 3-6).

    ``rank`` is how many directions are compared; None takes the smallest rank of the spectra.
    """
    rank = _common_rank(spectra, rank)
    xp = array_namespace(spectra[0].vectors)
    rows = xp.stack([one.vectors[:, :rank].T for one in spectra])  # (K, Q, D)
    stacked = xp.matrix_transpose(rows)
    return symmetric(xp.stack([relevance(one, stacked) for one in spectra]))


def _common_rank(spectra: Sequence[Spectrum], rank: int | None) -> int:
    if not spectra:
        raise ValueError("spectra must hold at least one client, got none; pass one per client")
    dimensions = sorted({one.dimension for one in spectra})
    if len(dimensions) > 1:
        raise ValueError(
            f"spectra must share one feature dimension, got {dimensions}; "
            "use the same features for every client"
        )
    available = min(one.rank for one in spectra)
    if rank is None:
        return available
    if not 1 <= rank <= available:
        raise ValueError(
            f"rank must be in 1..{available}, the smallest rank of the spectra, got {rank}; "
            "lower rank or leave out clients with few samples"
        )
    return rank


# ---- the fast forms that a run executes, float32 -------------------------------------------------


def response_operator(spectrum: Spectrum) -> Array:
    """Return A (R, D) with ||A v|| = ||Sigma v|| for every v: rows lambda_i u_i, float32 (Eq. 3).

    ``spectrum`` must hold all directions with a nonzero eigenvalue; a truncated one gives another
    norm. With fewer samples than dimensions A is smaller than Sigma.
    """
    xp = array_namespace(spectrum.vectors)
    return xp.astype((spectrum.vectors * spectrum.values).T, xp.float32)


def relevance_block(operator: Array, values: Array, rows: Array) -> Array:
    """Return r(k, j) in float32 for a block of others (J,), from rows (J * Q, D) (Eq. 3-5).

    The fast form of ``relevance``: one product for the whole block. ``values`` are the first Q
    eigenvalues of the data set that responds; the smallest should be well above float32 rounding
    of the largest.
    """
    xp = array_namespace(operator, rows)
    mapped = rows @ operator.T
    return relevance_of_energies(values, xp.vecdot(mapped, mapped))


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """Sigma^2 for products with many vectors: ||Sigma v||^2 = v' Sigma^2 v, float32.

    The leading directions are kept apart: beside their squares, float32 would lose all others.
    """

    leading: Array
    """lambda_i u_i of the first directions (P, D)."""
    packed: Array
    """Upper triangle of the rest, by rows, twice off the diagonal (D (D + 1) / 2,)."""
    floor: float
    """||Sigma v||^2 below this is mostly rounding."""


def quadratic_form(spectrum: Spectrum) -> QuadraticForm:
    """Return Sigma^2 in half the numbers, and half the work, of Sigma (Eq. 3).

    ``spectrum`` must hold all directions with a nonzero eigenvalue.
    """
    xp = array_namespace(spectrum.vectors)
    scaled = spectrum.vectors * spectrum.values
    count = num_leading(spectrum.dimension)
    rest = scaled[:, count:]
    square = rest @ rest.T
    triangle = [
        part
        for i in range(spectrum.dimension)
        for part in (square[i, i : i + 1], 2.0 * square[i, i + 1 :])
    ]
    largest = float(spectrum.values[count]) if spectrum.rank > count else 0.0
    return QuadraticForm(
        xp.astype(scaled[:, :count].T, xp.float32),
        xp.astype(xp.concat(triangle), xp.float32),
        SMALLEST_SHARE * largest**2,
    )


def num_leading(dimension: int) -> int:
    """Return how many directions a quadratic form keeps apart."""
    return max(dimension // 12, 1)


def pair_products(columns: Array) -> Array:
    """Return the products v_a v_b, a <= b, of every column v of (D, N): (D (D + 1) / 2, N)."""
    xp = array_namespace(columns)
    return xp.concat([columns[i : i + 1, :] * columns[i:, :] for i in range(columns.shape[0])])


def quadratic_energies(leading: Array, packed: Array, columns: Array, products: Array) -> Array:
    """Return ||Sigma_k v||^2 (B, N) for the forms of B clients and N vectors (Eq. 3).

    ``leading`` (B, P, D) and ``packed`` are stacked forms, ``columns`` (D, N) the vectors and
    ``products`` their ``pair_products``.
    """
    xp = array_namespace(packed)
    count, per_client, dimension = leading.shape
    mapped = xp.reshape(leading, (count * per_client, dimension)) @ columns
    mapped = xp.reshape(mapped, (count, per_client, -1))
    return packed @ products + xp.sum(mapped * mapped, axis=1)


def quadratic_energies_turned(
    leading: Array, packed: Array, columns: Array, products: Array
) -> Array:
    """Return ``quadratic_energies`` with clients along the columns of each product."""
    xp = array_namespace(packed)
    count, per_client, dimension = leading.shape
    mapped = columns.T @ xp.reshape(leading, (count * per_client, dimension)).T
    mapped = xp.reshape(mapped, (-1, count, per_client))
    return (products.T @ packed.T + xp.sum(mapped * mapped, axis=2)).T


def relevance_of_energies(values: Array, squares: Array) -> Array:
    """Return r(k, j) (..., J) from lambda (..., Q) and ||Sigma_k v||^2 (..., J * Q) (Eq. 4-5).

    The fast form of ``ratios`` and ``relevance``.
    """
    xp = array_namespace(squares)
    rank = values.shape[-1]
    energies = xp.sqrt(xp.clip(squares, min=0.0))
    energies = xp.reshape(energies, (*squares.shape[:-1], -1, rank))
    values = xp.broadcast_to(xp.astype(values, xp.float32)[..., None, :], energies.shape)
    ratio = xp.minimum(values, energies) / xp.maximum(values, energies)  # Eq. 4
    return xp.exp(xp.mean(xp.log(xp.clip(ratio, min=SMALLEST_RATIO)), axis=-1))  # Eq. 5


def symmetric_in_place(r: np.ndarray) -> np.ndarray:
    """Return R (Eq. 6) in the memory of r: at K = 10,000 every copy is 400 MB.

    The fast form of ``symmetric``.
    """
    for k in range(len(r)):
        mean = (r[k, k + 1 :] + r[k + 1 :, k]) / 2
        r[k, k + 1 :], r[k + 1 :, k], r[k, k] = mean, mean, 1.0
    return r

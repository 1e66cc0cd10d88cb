"""Grouping of clients by agglomerative clustering of their similarity (FB-NLL section III)."""

from __future__ import annotations

import numpy as np

from raysim.core.spectra import Array, as_numpy

LINKAGES = ("average", "complete", "single")

ASYMMETRY = 1e-8
"""Larger differences between R and its transpose are a mistake, not rounding."""


def cluster(similarity: Array, count: int, linkage: str = "average") -> np.ndarray:
    """Return each client's group, 0..count-1 in order of the smallest member, as NumPy int64.

    Exactly ``count`` groups, also when merge heights tie.
    """
    matrix = _checked(similarity)
    num_clients = len(matrix)
    if not 1 <= count <= num_clients:
        raise ValueError(
            f"count must be in 1..{num_clients}, the number of clients, got {count}; "
            "change the number of groups"
        )
    return _cut(merge_tree(matrix, linkage), num_clients, count)


def merge_tree(similarity: Array, linkage: str = "average") -> np.ndarray:
    """Return SciPy's merge table Z (K-1, 4) of the distances D = 1 - R."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    _check_linkage(linkage)
    matrix = _checked(similarity)
    if len(matrix) == 1:
        return np.zeros((0, 4))
    distance = 1.0 - (matrix + matrix.T) / 2
    condensed = squareform(distance, checks=False)  # reads no diagonal: it counts as zero
    return np.asarray(hierarchy.linkage(condensed, method=linkage))


def _cut(tree: np.ndarray, num_clients: int, count: int) -> np.ndarray:
    """Return the groups after the first ``num_clients - count`` merges.

    SciPy's ``fcluster`` cuts at a height instead, which gives fewer groups when heights tie.
    """
    members = {client: [client] for client in range(num_clients)}
    for step, merge in enumerate(tree[: num_clients - count]):
        members[num_clients + step] = members.pop(int(merge[0])) + members.pop(int(merge[1]))
    labels = np.empty(num_clients, dtype=np.int64)
    for group, clients in enumerate(sorted(members.values(), key=min)):
        labels[clients] = group
    return labels


def _check_linkage(linkage: str) -> None:
    if linkage == "ward":
        raise ValueError(
            "linkage must not be 'ward': it needs Euclidean distances between points, and 1 - R "
            "is not one; use 'average'"
        )
    if linkage not in LINKAGES:
        raise ValueError(
            f"linkage must be one of {', '.join(LINKAGES)}, got {linkage!r}; use 'average'"
        )


def _checked(similarity: Array) -> np.ndarray:
    matrix = as_numpy(similarity).astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(
            f"similarity must be square, one row per client, got shape {matrix.shape}; "
            "pass the matrix of similarity_matrix"
        )
    if not np.isfinite(matrix).all():
        raise ValueError("similarity must be finite, got NaN or infinity; check the features")
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > ASYMMETRY:
        raise ValueError(
            f"similarity must be symmetric, got entries that differ by {gap:.3g}; "
            "pass symmetric(r) instead of r"
        )
    return matrix

"""Hierarchical agglomerative clustering (HAC) of the similarity matrix R.

FB-NLL section III and Algorithm 1, line 18; RCC-PFL Procedure 1, line 15.
"""

from __future__ import annotations

import numpy as np

from raysim.core.spectra import Array, as_numpy

LINKAGES = ("average", "complete", "single")

ASYMMETRY = 1e-8
"""Larger differences between R and its transpose are a mistake, not rounding."""


def cluster(similarity: Array, count: int, linkage: str = "average") -> np.ndarray:
    """Return each client's group, 0..count-1 in order of the smallest member, as NumPy int64.

    The papers' cluster identity CI: exactly ``count`` groups, also when merge heights tie.
    """
    num_clients = len(_square(similarity))
    if not 1 <= count <= num_clients:
        raise ValueError(
            f"count must be in 1..{num_clients}, the number of clients, got {count}; "
            "change the number of groups"
        )
    return cut(merge_tree(similarity, linkage), count)


def merge_tree(similarity: Array, linkage: str = "average") -> np.ndarray:
    """Return the dendrogram, SciPy's merge table Z (K-1, 4), of the distances 1 - R.

    FB-NLL Algorithm 1, line 18; RCC-PFL Procedure 1, line 15.
    """
    from scipy.cluster import hierarchy

    if linkage == "ward":
        raise ValueError(
            "linkage must not be 'ward': it needs Euclidean distances between points, and 1 - R "
            "is not one; use 'average'"
        )
    if linkage not in LINKAGES:
        raise ValueError(
            f"linkage must be one of {', '.join(LINKAGES)}, got {linkage!r}; use 'average'"
        )
    matrix = _square(similarity)
    condensed = _condensed_distances(matrix)
    if len(matrix) == 1:
        return np.zeros((0, 4))
    return np.asarray(hierarchy.linkage(condensed, method=linkage))


def cut(tree: np.ndarray, count: int) -> np.ndarray:
    """Return the groups of a dendrogram after its first ``K - count`` merges.

    SciPy's ``fcluster`` cuts at a height instead, which gives fewer groups when heights tie.
    """
    num_clients = len(tree) + 1
    members = {client: [client] for client in range(num_clients)}
    for step, merge in enumerate(tree[: num_clients - count]):
        members[num_clients + step] = members.pop(int(merge[0])) + members.pop(int(merge[1]))
    labels = np.empty(num_clients, dtype=np.int64)
    for group, clients in enumerate(sorted(members.values(), key=min)):
        labels[clients] = group
    return labels


def _square(similarity: Array) -> np.ndarray:
    matrix = as_numpy(similarity)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0:
        raise ValueError(
            f"similarity must be square, one row per client, got shape {matrix.shape}; "
            "pass the matrix of similarity_matrix"
        )
    return matrix


def _condensed_distances(matrix: np.ndarray) -> np.ndarray:
    """Return 1 - R above the diagonal, row by row: no second copy of a large R is made."""
    count = len(matrix)
    condensed = np.empty(count * (count - 1) // 2)
    at, gap = 0, 0.0
    for k in range(count):
        row = matrix[k, k + 1 :].astype(np.float64)
        column = matrix[k + 1 :, k].astype(np.float64)
        if not (np.isfinite(row).all() and np.isfinite(column).all() and np.isfinite(matrix[k, k])):
            raise ValueError("similarity must be finite, got NaN or infinity; check the features")
        gap = max(gap, float(np.abs(row - column).max(initial=0.0)))
        condensed[at : at + len(row)] = 1.0 - (row + column) / 2
        at += len(row)
    if gap > ASYMMETRY:
        raise ValueError(
            f"similarity must be symmetric, got entries that differ by {gap:.3g}; "
            "pass symmetric(r) instead of r"
        )
    return condensed

"""Grouping by landmarks: an approximation of all pairs, for more clients than R can hold (ours).

L of the K clients are landmarks. Only similarities with a landmark are known, K x L instead of
K x K: O(K L q d^2) work. The landmarks are grouped as if they were alone; every other client joins
the group whose landmarks are most like it on average. With L = K this is the exact grouping.
With L < K it may differ: a group without any landmark cannot be found (of M equal groups one is
missed with probability at most M (1 - 1/M)^L), and the shape of a group is known from its
landmarks only.

Shapes: K clients, L landmarks, M groups.
"""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, device

from raysim.core.clustering import cluster
from raysim.core.spectra import Array, as_numpy


def choose_landmarks(num_clients: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``count`` clients drawn without replacement, ascending, as NumPy int64."""
    if not 1 <= count <= num_clients:
        raise ValueError(
            f"count must be in 1..{num_clients}, the number of clients, got {count}; "
            "change the number of landmarks"
        )
    return np.sort(rng.choice(num_clients, size=count, replace=False)).astype(np.int64)


def landmark_similarity(to_landmarks: Array, of_landmarks: Array, landmarks: np.ndarray) -> Array:
    """Return the columns of R that belong to the landmarks, (K, L) (FB-NLL Eq. 6).

    Parameters
    ----------
    to_landmarks
        r(k, l), the relevance of every landmark to every client (K, L).
    of_landmarks
        r(l, k), the relevance of every client to every landmark (L, K).
    landmarks
        The landmarks' numbers (L,); a landmark's similarity with itself is 1.
    """
    shape = (int(to_landmarks.shape[0]), len(landmarks))
    if tuple(to_landmarks.shape) != shape or tuple(of_landmarks.shape) != shape[::-1]:
        raise ValueError(
            f"answers must have shapes (K, {shape[1]}) and ({shape[1]}, K) for {shape[1]} "
            f"landmarks, got {tuple(to_landmarks.shape)} and {tuple(of_landmarks.shape)}; "
            "stack one row per client and one per landmark"
        )
    xp = array_namespace(to_landmarks, of_landmarks)
    mean = (to_landmarks + of_landmarks.T) / 2
    ids = xp.arange(shape[0], device=device(mean))
    own = ids[:, None] == xp.asarray(landmarks, device=device(mean))[None, :]
    return xp.where(own, xp.ones_like(mean), mean)


def group_by_landmarks(
    similarity: Array, landmarks: np.ndarray, count: int, linkage: str = "average"
) -> np.ndarray:
    """Return every client's group (K,) from its similarity with the landmarks (K, L).

    ``count`` groups, 0..count-1 in order of the smallest member, as NumPy int64.
    """
    xp = array_namespace(similarity)
    rows = xp.asarray(landmarks, device=device(similarity))
    landmark_groups = cluster(xp.take(similarity, rows, axis=0), count, linkage)
    return assign_to_landmarks(similarity, landmarks, landmark_groups)


def assign_to_landmarks(
    similarity: Array, landmarks: np.ndarray, landmark_groups: np.ndarray
) -> np.ndarray:
    """Return every client's group (K,): landmarks keep theirs, the others take the most similar.

    That is the group with the largest mean similarity of its landmarks; of equal ones the lowest.
    Groups are renumbered in order of their smallest member.
    """
    if similarity.ndim != 2 or not len(landmarks) == len(landmark_groups) == similarity.shape[1]:
        raise ValueError(
            f"similarity must be (K, L) with one column per landmark, got shape "
            f"{tuple(similarity.shape)} for {len(landmarks)} landmarks in {len(landmark_groups)} "
            "groups; pass the matrix of landmark_similarity"
        )
    names = np.unique(landmark_groups)
    means = np.stack([_mean_column(similarity, landmark_groups == g) for g in names], axis=1)
    if not np.isfinite(means).all():
        raise ValueError("similarity must be finite, got NaN or infinity; check the features")
    groups = names[means.argmax(axis=1)]  # the first maximum: the lowest group
    groups[landmarks] = landmark_groups
    # The same groups, numbered by their smallest member.
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _mean_column(similarity: Array, chosen: np.ndarray) -> np.ndarray:
    """Return each client's mean over the chosen columns, float64."""
    xp = array_namespace(similarity)
    columns = xp.asarray(np.flatnonzero(chosen), device=device(similarity))
    part = xp.astype(xp.take(similarity, columns, axis=1), xp.float64)
    return as_numpy(xp.mean(part, axis=1))

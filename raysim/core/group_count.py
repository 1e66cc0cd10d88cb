"""How many groups there are, read from the dendrogram, and how stable that is.

Ours: the papers are told M. A cut into M groups is good when the next merge is much higher than
the last one (gap) and when clients are closer to their own group than to the next (silhouette); its
score is the mean of both. Distances that chance explains count as equal. Their yardstick is each
client's similarity with itself, measured between two random halves of its samples: half as many
samples vary sqrt(2) times as much. M is the cut with the best score. Its clarity is the same score
on the scale -log R, where large distances do not all end near 1. A cut that is not clear does not
count: then M = 1, one group. A group of one client is found only beside larger ones.

Shapes: K clients, M groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raysim.core.clustering import cut, merge_tree
from raysim.core.metrics import adjusted_rand
from raysim.core.similarity import SMALLEST_RATIO
from raysim.core.spectra import Array, as_numpy

Scale = Callable[[np.ndarray], np.ndarray]

FEWEST_CLIENTS = 4
"""With fewer, every cut looks as good as any other."""
MOST_GROUPS = 50
MOST_PER_CLIENT = 0.6
"""Cuts into more groups than these two allow are left out: they are mostly pairs and single
clients, whose merge heights say little."""
CHANCE_FACTOR = 1.25  # ours: set, like CLEAR, on digits, MNIST, Fashion-MNIST and CIFAR-10
"""Distances up to this many times the yardstick count as equal."""
CLEAR = 0.36  # ours
"""Smallest clarity of a cut that counts."""
REPETITIONS = 40
SHARE = 0.8
"""Of the clients, and of their samples, that a repetition looks at."""
MOST_REPEATED = 500
"""Clients of one repetition: enough to see the groups, and K = 10,000 stays affordable."""
SAME_GROUPS = 0.9
"""Adjusted Rand index from which two groupings count as the same."""


@dataclass(frozen=True, eq=False)
class GroupCount:
    """A number of groups with the reasons for it."""

    count: int
    groups: np.ndarray
    """Each client's group (K,)."""
    stability: float
    """Share of the repetitions that find the same groups (adjusted Rand index 0.9 or more)."""
    scores: dict[int, float]
    """Mean of gap and silhouette of every cut that was looked at, by M."""
    clarity: float
    """Clarity of the cut with the best score; below 0.36 the cut does not count and M is 1."""
    chance: float
    """Distance 1 - R that chance explains."""

    @property
    def best(self) -> int:
        """The cut with the best score, also where it is not clear."""
        return _best(self.scores)


def choose_count(
    similarity: Array,
    own: Array,
    linkage: str = "average",
    *,
    rng: np.random.Generator,
    parts: Sequence[Array] = (),
    repetitions: int = REPETITIONS,
) -> GroupCount:
    """Return the number of groups that R (K, K) shows.

    Every repetition looks at four fifths of the clients, at most 500.

    Parameters
    ----------
    own
        Similarity of every client with itself, between two random halves of its samples (K,).
    parts
        Matrices R of the same clients, each on random four fifths of their samples; repetitions
        take them in turn. Without any they use R itself, and only the choice of clients varies.
    """
    full, selves = as_numpy(similarity), as_numpy(own).astype(np.float64)
    _check(full, selves)
    groups, scores, clear = _best_cut(full, _chance(selves, 1.0), linkage)
    others = [(as_numpy(part), SHARE) for part in parts] or [(full, 1.0)]
    same = 0
    for repetition in range(repetitions):
        # Four fifths of the clients, at least one less than all, ascending.
        left = len(full) - max(math.floor((1.0 - SHARE) * len(full) + 1e-9), 1)
        chosen = np.sort(rng.choice(len(full), min(left, MOST_REPEATED), replace=False))
        matrix, share = others[repetition % len(others)]
        part, chance = matrix[np.ix_(chosen, chosen)], _chance(selves[chosen], share)
        same += adjusted_rand(_best_cut(part, chance, linkage)[0], groups[chosen]) >= SAME_GROUPS
    stability = same / repetitions if repetitions else float("nan")
    count = int(groups.max()) + 1
    return GroupCount(count, groups, stability, scores, clear, _chance(selves, 1.0))


def cut_scores(similarity: Array, tree: np.ndarray, chance: float = 0.0) -> dict[int, float]:
    """Return the scores of the cuts into 2 to 0.6 K groups, at most 50.

    The gap is 1 - h / h', with h the last merge below the cut and h' the first above it. Distances
    below ``chance`` count as ``chance``.
    """
    most = min(math.ceil(MOST_PER_CLIENT * (len(tree) + 1)), MOST_GROUPS)
    finest = cut(tree, most)
    sums = _summed_distances(as_numpy(similarity), finest)  # added up for every coarser cut
    scores = {}
    for m in range(2, most + 1):
        groups = cut(tree, m)
        member = np.zeros((most, m))
        member[finest, groups] = 1.0
        own, other = _own_and_next(sums @ member, groups)
        scores[m] = _score(_around(tree, m), own, other, lambda d: np.maximum(d, chance))
    return scores


def clarity(similarity: Array, tree: np.ndarray, count: int, chance: float = 0.0) -> float:
    """Return the score of the cut into ``count`` groups on the scale -log R."""
    groups = cut(tree, count)
    sums = _summed_distances(as_numpy(similarity), groups)

    def scale(distances: np.ndarray) -> np.ndarray:
        return -np.log(np.clip(1.0 - np.maximum(distances, chance), SMALLEST_RATIO, 1.0))

    return _score(_around(tree, count), *_own_and_next(sums, groups), scale)


def _around(tree: np.ndarray, count: int) -> np.ndarray:
    """Return the heights of the last merge below the cut and of the first above it."""
    at = len(tree) - count
    return np.asarray(tree[at : at + 2, 2])


def _score(heights: np.ndarray, own: np.ndarray, other: np.ndarray, scale: Scale) -> float:
    """Return the mean of gap and silhouette with all distances on a scale."""
    below, above = scale(heights)
    gap = 1.0 - below / above if above > 0 else 0.0
    return float((gap + _silhouettes(own, other, scale).mean()) / 2)


def silhouettes(similarity: Array, groups: np.ndarray) -> np.ndarray:
    """Return (b - a) / max(a, b) of every client (K,).

    a is its mean distance to its own group, b to the nearest other one; 0 where it is alone, or
    where there is one group.
    """
    if int(np.max(groups)) == 0:
        return np.zeros(len(groups))
    sums = _summed_distances(as_numpy(similarity), groups)
    return _silhouettes(*_own_and_next(sums, groups), lambda distances: distances)


def _summed_distances(similarity: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return each client's sum of 1 - R over the members of every group (K, M), float64."""
    member = np.eye(int(np.max(groups)) + 1)[groups]
    sums = np.empty(member.shape)
    for start in range(0, len(sums), 1024):  # no second copy of a large R
        rows = slice(start, start + 1024)
        sums[rows] = (1.0 - similarity[rows].astype(np.float64)) @ member
    return sums


def _own_and_next(sums: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each client's mean distance to its own group, NaN where it is alone, and to the next.

    From its summed distances to the groups (K, M).
    """
    clients, sizes = np.arange(len(groups)), np.bincount(groups)
    own = np.full(len(groups), np.nan)
    np.divide(sums[clients, groups], sizes[groups] - 1, out=own, where=sizes[groups] > 1)
    means = sums / sizes
    means[clients, groups] = np.inf
    return own, means.min(axis=1)


def _silhouettes(own: np.ndarray, other: np.ndarray, scale: Scale) -> np.ndarray:
    """Return (b - a) / max(a, b) with both distances on a scale; 0 where a client is alone."""
    a, b = scale(np.where(np.isnan(own), 0.0, own)), scale(other)
    larger = np.maximum(a, b)
    found = np.divide(b - a, larger, out=np.zeros(len(a)), where=larger > 0)
    return np.where(np.isnan(own), 0.0, found)


def _chance(own: np.ndarray, share: float) -> float:
    """Return the distance that chance explains between clients with a share of their samples.

    ``own`` comes from halves. On the scale -log R, where distances add up and do not end at 1.
    """
    spread = -np.log(np.clip(own, SMALLEST_RATIO, 1.0)).mean()
    return 1.0 - math.exp(-CHANCE_FACTOR * spread / math.sqrt(2.0 * share))


def _best_cut(
    similarity: np.ndarray, chance: float, linkage: str
) -> tuple[np.ndarray, dict[int, float], float]:
    """Return the groups of the best cut, one group where it is not clear; scores and clarity."""
    tree = merge_tree(similarity, linkage)
    scores = cut_scores(similarity, tree, chance)
    best = _best(scores)
    clear = clarity(similarity, tree, best, chance)
    return cut(tree, best if clear >= CLEAR else 1), scores, clear


def _best(scores: dict[int, float]) -> int:
    return max(scores, key=lambda m: scores[m])  # of equal ones the fewest groups


def _check(similarity: np.ndarray, own: np.ndarray) -> None:
    if similarity.ndim == 2 and len(similarity) < FEWEST_CLIENTS:
        raise ValueError(
            f"at least {FEWEST_CLIENTS} clients are needed to see how many groups there are, got "
            f"{len(similarity)}; name the number of groups"
        )
    if own.shape != similarity.shape[:1] or not np.isfinite(own).all():
        raise ValueError(
            f"own must hold one finite similarity per client ({len(similarity)}), got shape "
            f"{own.shape}; compare two halves of every client's samples"
        )

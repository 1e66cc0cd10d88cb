"""One-shot clustering of clients by their features: FB-NLL Algorithm 1, lines 3-18 (Eq. 2-6).

Steps 1-3 of the algorithm, without a label; RCC-PFL Procedure 1 (Eq. 1-5). What clients compute is
in ``steps.relevance``, the equations in ``core.spectra`` and ``core.similarity``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np

from raysim.core.clustering import cluster
from raysim.core.group_count import FEWEST_CLIENTS, GroupCount, choose_count
from raysim.core.landmarks import choose_landmarks, group_by_landmarks, landmark_similarity
from raysim.core.similarity import symmetric_in_place
from raysim.core.spectra import Spectrum
from raysim.errors import ConfigError
from raysim.protocols import ClientId, Context, State, Step
from raysim.seeding import stream
from raysim.settings import In, check, settings
from raysim.steps.arrays import to_numpy
from raysim.steps.relevance import (
    WIRE,
    curve_task,
    offered_rank_task,
    relevance_task,
    self_task,
    vectors_task,
)

log = logging.getLogger(__name__)


@settings
class GroupingSettings:
    """How clients are compared and clustered."""

    groups: int | Literal["auto"] | None = None
    """M; null: the partition's number of tasks; auto: what the dendrogram shows
    (``core.group_count``); the record says how stable that is."""
    rank: int | Literal["auto", "threshold", "full"] = "auto"
    """q, eigenvectors compared.

    Threshold: those above ``threshold``; full: all d; auto: as threshold, in RCC-PFL 30 on
    CIFAR-10 and 10 elsewhere.
    """
    threshold: Annotated[float, In("[0, 1]")] = 0.005  # ours: the paper gives no number
    """Eigenvalues below this share of the largest one are left out."""
    smallest_rank: Annotated[int, In("[1, inf)")] = 3  # ours
    """With a threshold, at least this many eigenvectors are compared."""
    linkage: Literal["average", "complete", "single"] = "average"
    landmarks: Annotated[int | None, In("[1, inf)", do="null compares all pairs")] = None
    """L, clients that are compared with everyone: K L similarities instead of K^2, for K beyond
    10,000. An approximation (``core.landmarks``); null: exact, all pairs."""
    curve: Annotated[int | None, In("[1, inf)", do="null records none")] = None
    """Largest rank up to which R is also recorded, within and between groups (FB-NLL Fig. 5).

    A diagnosis for reports: it changes no group and counts no byte.
    """

    def __post_init__(self) -> None:
        for name in ("groups", "rank"):
            value = getattr(self, name)
            ok = not isinstance(value, int) or value >= 1
            check(ok, name, "must be at least 1", got=value)

    def count(self, config: Any) -> int | None:
        """Return M; None where it is to be found."""
        if self.groups == "auto":
            return None
        return int(config.data.partition.groups if self.groups is None else self.groups)

    def num_offered(self, full: Spectrum) -> int:
        """Return how many eigenvectors a client with this spectrum offers (FB-NLL section V)."""
        if self.rank == "full":
            return full.rank  # d, unless the client has fewer samples than that
        if not isinstance(self.rank, str):
            return min(self.rank, full.rank)
        values = to_numpy(full.values)
        above = int(np.count_nonzero(values >= self.threshold * values[0]))
        return min(max(above, self.smallest_rank), full.rank)

    def check(self, config: Any, dimension: int, *, at: str = "method.grouping") -> None:
        """Refuse more groups than clients or landmarks, and ranks above the feature dimension.

        ``at`` is where these settings are in the config, for the message.
        """
        count, clients = self.count(config), config.data.partition.clients
        if count is None:
            compared, count = self.landmarks or clients, 1
            if compared < FEWEST_CLIENTS:
                raise ConfigError(
                    f"{at}.groups is auto, which needs at least {FEWEST_CLIENTS} clients (or "
                    f"landmarks), got {compared}; name the number of groups"
                )
        if count > clients:
            where = "data.partition.groups" if self.groups is None else f"{at}.groups"
            raise ConfigError(
                f"{where} is {count}, but data.partition.clients is {clients}; every group needs a "
                "client: raise data.partition.clients or lower the number of groups"
            )
        if self.landmarks is not None and self.landmarks < count:
            raise ConfigError(
                f"{at}.landmarks is {self.landmarks}, but there are {count} groups and each "
                "needs a landmark; raise it (ten per group find equal groups), or set it to null"
            )
        if self.landmarks is not None and self.landmarks > clients:
            raise ConfigError(
                f"{at}.landmarks is {self.landmarks}, but data.partition.clients is {clients} "
                "and landmarks are clients; lower it, or set it to null for the exact grouping"
            )
        if not isinstance(self.rank, str) and self.rank > dimension:
            raise ConfigError(
                f"{at}.rank is {self.rank}, above the feature dimension {dimension} of "
                f"data.features; lower {at}.rank or choose larger features"
            )


def group_by_similarity(how: GroupingSettings) -> Step:
    """Return the step that clusters clients by the similarity of their spectra."""
    label = _label_all_pairs if how.landmarks is None else _label_by_landmarks

    def step(context: Context, state: State) -> State:
        labels = label(context, how)
        groups = dict(zip(context.federation.clients, labels.tolist(), strict=True))
        context.observe_groups(groups)
        if how.curve is not None:
            context.artifact(
                "relevance_by_rank", _curve(context, replace(how, rank=how.curve), groups)
            )
        return replace(state, groups=groups)

    return step


def _label_all_pairs(context: Context, how: GroupingSettings) -> np.ndarray:
    similarity, rank = exchange(context, how)
    context.artifact("similarity", similarity)
    context.record(rank=rank)
    count = how.count(context.config)
    if count is None:
        return _found_count(context, how, similarity, context.federation.clients, rank).groups
    return cluster(similarity, count, linkage=how.linkage)  # line 18: HAC on R, cut into M groups


def _label_by_landmarks(context: Context, how: GroupingSettings) -> np.ndarray:
    similarity, landmarks, rank = exchange_with_landmarks(context, how)
    context.artifact("landmark_similarity", similarity)
    context.artifact("landmarks", landmarks)
    context.record(rank=rank, landmarks=len(landmarks))
    count = how.count(context.config)
    if count is None:
        on = [context.federation.clients[i] for i in landmarks]
        count = _found_count(context, how, similarity[landmarks], on, rank).count
    return group_by_landmarks(similarity, landmarks, count, how.linkage)


def _found_count(
    context: Context,
    how: GroupingSettings,
    similarity: np.ndarray,
    on: Sequence[ClientId],
    rank: int,
) -> GroupCount:
    """Return how many groups the clients ``on`` show; each sends its similarity with itself."""
    seed = context.config.seed
    shared = {"arrays": context.config.arrays, "rank": rank, "seed": seed}
    own = context.federation.map(self_task, on=on, **shared)
    context.sent("up", "self_similarity", len(own) * np.dtype(WIRE).itemsize)
    auto = choose_count(
        similarity, np.array([*own.values()]), how.linkage, rng=stream(seed, "group_count")
    )
    scores = {str(m): round(score, 6) for m, score in auto.scores.items()}
    clear = round(auto.clarity, 6)
    sure = {"count": auto.count, "confidence": auto.stability, "clarity": clear}
    context.record(auto={**sure, "scores": scores})
    return auto


def exchange(context: Context, how: GroupingSettings) -> tuple[np.ndarray, int]:
    """Return all clients' similarity matrix R (Eq. 2-6) and the common rank q (lines 3-17)."""
    # Lines 3-7, Eq. 2: every client sends V_k, the top-q eigenvectors of the covariance of its
    # features (core.spectra.spectrum).
    rows, rank = _uploaded(context, how)
    count = len(rows)  # K; a row: one client's vectors, which go to the K - 1 others
    # Lines 8-15, Eq. 3-5: it receives everyone else's V_j and replies with its relevance r(k, j) to
    # each (core.similarity.relevance; steps.relevance has the float32 forms that run).
    context.sent("down", "eigenvectors", (count - 1) * rows.nbytes)
    answers = _answers(context, how, context.federation.clients, rows)
    context.sent("up", "relevance", count * (count - 1) * np.dtype(WIRE).itemsize)
    # Lines 16-17, Eq. 6: R is the mean of both directions (core.similarity.symmetric).
    return symmetric_in_place(np.stack(answers)), rank


def exchange_with_landmarks(
    context: Context, how: GroupingSettings
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the landmarks' columns of R (K, L), their places among the clients, and the rank q.

    Landmarks receive everyone's eigenvectors, the other clients only those of the landmarks.
    """
    assert how.landmarks is not None
    rows, rank = _uploaded(context, how)
    clients, count = context.federation.clients, how.landmarks
    chosen = choose_landmarks(len(rows), count, stream(context.config.seed, "landmarks"))
    others = np.setdiff1d(np.arange(len(rows)), chosen)
    pairs = count * (len(rows) - 1) + len(others) * count  # who answers to whom; not to oneself
    context.sent("down", "eigenvectors", pairs * rows[0].nbytes)
    of_landmarks = np.stack(_answers(context, how, [clients[i] for i in chosen], rows))
    to_landmarks = np.empty((len(rows), count), dtype=WIRE)
    to_landmarks[chosen] = of_landmarks[:, chosen]
    if len(others):
        to_landmarks[others] = _answers(context, how, [clients[i] for i in others], rows[chosen])
    context.sent("up", "relevance", pairs * np.dtype(WIRE).itemsize)
    return landmark_similarity(to_landmarks, of_landmarks, chosen), chosen, rank


def _uploaded(context: Context, how: GroupingSettings) -> tuple[np.ndarray, int]:
    """Return every client's eigenvectors as rows (K, Q, D), and the common rank Q (lines 3-7)."""
    federation = context.federation
    shared = {"how": how, "arrays": context.config.arrays}
    ranks = federation.map(offered_rank_task, **shared)
    rank = min(ranks.values())  # one q for all: the smallest that every client can offer
    sent = federation.map(vectors_task, rank=rank, **shared)
    rows = np.stack([vectors.T for vectors in sent.values()])
    asked = {"full": rows.shape[2], "auto": how.smallest_rank, "threshold": how.smallest_rank}
    wanted = asked[how.rank] if isinstance(how.rank, str) else how.rank
    if rank < wanted:
        client = min(ranks, key=lambda k: (ranks[k], k))
        log.warning(
            "rank %d is capped at %d for all clients: client %d has no more samples; "
            "its group is uncertain",
            wanted,
            rank,
            client,
        )
    context.sent("up", "rank", len(rows) * 4)
    context.sent("up", "eigenvectors", rows.nbytes)
    return rows, rank


def _answers(
    context: Context, how: GroupingSettings, on: Sequence[ClientId], rows: np.ndarray
) -> list[np.ndarray]:
    """Return r(k, .) to the eigenvectors ``rows`` for the clients ``on``, by id (lines 9-12)."""
    federation = context.federation
    handle = federation.put({"rows": rows})
    shared = {"how": how, "arrays": context.config.arrays, "rank": rows.shape[1]}
    shared["clients"] = len(federation.clients)
    return list(federation.map(relevance_task, on=on, others=handle, **shared).values())


def _curve(context: Context, how: GroupingSettings, groups: Mapping[ClientId, int]) -> np.ndarray:
    """Return the mean R in and between ``groups`` by number of eigenvectors (Q, 2) (FB-NLL Fig. 5).

    R is the mean of both directions, so its mean over pairs is that of r. NaN: there is no pair.
    """
    federation = context.federation
    shared = {"how": how, "arrays": context.config.arrays}
    rank = min(federation.map(offered_rank_task, **shared).values())
    sent = federation.map(vectors_task, rank=rank, **shared)
    handle = federation.put({"rows": np.stack([vectors.T for vectors in sent.values()])})
    sums = federation.map(curve_task, others=handle, groups=dict(groups), **shared)
    total = np.sum(list(sums.values()), axis=0)
    sizes = np.bincount(list(groups.values()))
    same = int((sizes * (sizes - 1)).sum())
    pairs = np.array([same, len(groups) * (len(groups) - 1) - same])
    return np.divide(total, pairs, out=np.full(total.shape, np.nan), where=pairs > 0)

"""One-shot grouping from features alone: FB-NLL Algorithm 1, steps 1-3 (Eq.

2-6). No label is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Strict

from raysim.core.clustering import cluster
from raysim.core.similarity import relevance, relevance_block, response_operator
from raysim.core.spectra import Spectrum, spectrum, truncate
from raysim.errors import ConfigError
from raysim.protocols import Client, Context, Stacked, State, Step, Tree, runs_together
from raysim.settings import check, settings
from raysim.steps.arrays import on_device, to_numpy

log = logging.getLogger(__name__)
WIRE = np.float32
"""Type of what clients send: four bytes a number, as the papers count."""
TILE_ROWS = 2048
"""Eigenvectors per product; with d = 144 a tile is 1.2 MB and stays in the cache."""
FLOAT32_RANGE = 1e-3
"""Where an eigenvalue is below this share of the largest, its relevance is computed in float64."""


@settings
class GroupingSettings:
    """How clients are compared and clustered."""

    groups: int | None = None
    """M; null: the partition's number of tasks."""
    rank: Annotated[int, Strict()] | Literal["auto", "threshold", "full"] = "auto"
    """q, eigenvectors compared.

    Threshold: those above ``threshold``; full: all d; auto: the method's own rule.
    """
    threshold: float = (
        0.005  # ours: the paper fixes a small threshold per dataset without giving it
    )
    """Eigenvalues below this share of the largest one are left out."""
    smallest_rank: int = 3  # ours
    """With a threshold, at least this many eigenvectors are compared."""
    linkage: Literal["average", "complete", "single"] = "average"

    def __post_init__(self) -> None:
        check(
            self.groups is None or self.groups >= 1, "groups", "must be at least 1", got=self.groups
        )
        check(
            isinstance(self.rank, str) or self.rank >= 1,
            "rank",
            "must be at least 1",
            got=self.rank,
        )
        check(0 <= self.threshold <= 1, "threshold", "must be in [0, 1]", got=self.threshold)
        check(
            self.smallest_rank >= 1, "smallest_rank", "must be at least 1", got=self.smallest_rank
        )

    def count(self, config: Any) -> int:
        """Return M."""
        return int(config.data.partition.groups if self.groups is None else self.groups)

    def check(self, config: Any, dimension: int) -> None:
        """Refuse more groups than clients and ranks above the feature dimension."""
        count, clients = self.count(config), config.data.partition.clients
        if count > clients:
            where = "data.partition.groups" if self.groups is None else "method.grouping.groups"
            raise ConfigError(
                f"{where} is {count}, but data.partition.clients is {clients}; every group needs a "
                "client: raise data.partition.clients or lower the number of groups"
            )
        if not isinstance(self.rank, str) and self.rank > dimension:
            raise ConfigError(
                f"method.grouping.rank is {self.rank}, above the feature dimension {dimension} of "
                "data.features; lower method.grouping.rank or choose larger features"
            )


def group_by_similarity(how: GroupingSettings) -> Step:
    """Return the step that clusters clients by the similarity of their spectra."""

    def step(context: Context, state: State) -> State:
        similarity, rank = exchange(context, how)
        labels = cluster(similarity, how.count(context.config), linkage=how.linkage)  # HAC on R
        groups = dict(zip(context.federation.clients, labels.tolist(), strict=True))
        context.artifact("similarity", similarity)
        context.record(rank=rank)
        context.observe_groups(groups)
        return replace(state, groups=groups)

    return step


def exchange(context: Context, how: GroupingSettings) -> tuple[np.ndarray, int]:
    """Return the similarity matrix R (Eq. 6) of all clients and the common rank q."""
    federation = context.federation
    shared = {"how": how, "arrays": context.config.arrays}
    ranks = federation.map(spectrum_task, **shared)
    rank = min(ranks.values())  # one q for all: the smallest that every client can offer
    _warn_if_capped(ranks, how)
    sent = federation.map(vectors_task, rank=rank, **shared)
    vectors = np.stack(list(sent.values()))  # (K, D, Q)
    count = len(federation.clients)
    context.sent("up", "rank", count * 4)
    context.sent("up", "eigenvectors", vectors.nbytes)
    context.sent("down", "eigenvectors", (count - 1) * vectors.nbytes)  # relayed by the server
    rows = np.ascontiguousarray(vectors.transpose(0, 2, 1))  # (K, Q, D)
    handle = federation.put({"rows": rows})
    answers = federation.map(relevance_task, rank=rank, others=handle, **shared)
    context.sent("up", "relevance", count * (count - 1) * np.dtype(WIRE).itemsize)
    return _symmetric_in_place(np.stack(list(answers.values()))), rank


def _symmetric_in_place(r: np.ndarray) -> np.ndarray:
    """Return R (Eq. 6) in the memory of r: at K = 10,000 every copy is 400 MB."""
    for k in range(len(r)):
        mean = (r[k, k + 1 :] + r[k + 1 :, k]) / 2
        r[k, k + 1 :], r[k + 1 :, k], r[k, k] = mean, mean, 1.0
    return r


def spectrum_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, int]:
    """Reply with the number of eigenvectors this client can offer."""
    how: GroupingSettings = arguments["how"]
    own = _spectrum(client, arguments["arrays"])
    if how.rank == "full":
        return memory, own.rank  # d, unless the client has fewer samples than that
    if not isinstance(how.rank, str):
        return memory, min(how.rank, own.rank)
    values = to_numpy(own.values)
    above = int(np.count_nonzero(values >= how.threshold * values[0]))
    return memory, min(max(above, how.smallest_rank), own.rank)


def vectors_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with the top-q eigenvectors; eigenvalues stay here (Eq. 2)."""
    own = _spectrum(client, arguments["arrays"])
    return memory, to_numpy(truncate(own, arguments["rank"]).vectors).astype(WIRE)


def relevance_together(
    clients: Sequence[Client], memories: Sequence[Tree], arguments: Sequence[Mapping[str, Any]]
) -> Iterator[Stacked]:
    """Answer for all clients of an actor; the others come in tiles that stay in the cache."""
    shared = arguments[0]
    rows, arrays, rank = shared["others"]["rows"], shared["arrays"], shared["rank"]
    found = np.empty((len(clients), len(rows)), dtype=WIRE)
    spectra = [_spectrum(client, arrays) for client in clients]
    operators = [_operator(one, rank) for one in spectra]
    per_tile = max(TILE_ROWS // rank, 1)
    for start in range(0, len(rows), per_tile):
        tile = _padded(rows[start : start + per_tile], per_tile)
        known = min(per_tile, len(rows) - start)
        sent = on_device(tile.reshape(per_tile * rank, -1), arrays)
        for i, (own, operator) in enumerate(zip(spectra, operators, strict=True)):
            if operator is None:
                block = relevance(truncate(own, rank), _stack(sent, rank, arrays))
            else:
                block = relevance_block(operator, own.values[:rank], sent)
            found[i, start : start + known] = to_numpy(block)[:known]
    yield Stacked(tuple(client.id for client in clients), tuple(found))


@runs_together(relevance_together)
def relevance_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with this client's row r(k, .) against everyone's eigenvectors (Eq. 3-5)."""
    (part,) = relevance_together([client], [memory], [arguments])
    return memory, part.replies[0]


def _operator(own: Spectrum, rank: int) -> Any | None:
    """Return the float32 operator of a client, or None where float32 would not do."""
    values = to_numpy(own.values)
    return response_operator(own) if values[rank - 1] > FLOAT32_RANGE * values[0] else None


def _padded(tile: np.ndarray, count: int) -> np.ndarray:
    """Return the tile with ``count`` clients: products of one shape have the same bits."""
    missing = count - len(tile)
    return np.concatenate([tile, np.repeat(tile[:1], missing, axis=0)]) if missing else tile


def _stack(rows: Any, rank: int, arrays: Any) -> Any:
    plain = to_numpy(rows).astype(np.float64).reshape(-1, rank, rows.shape[1])
    return on_device(np.ascontiguousarray(plain.transpose(0, 2, 1)), arrays)


def _warn_if_capped(ranks: Mapping[int, int], how: GroupingSettings) -> None:
    """Say when a client with few samples lowers the rank of everyone."""
    client, rank = min(ranks.items(), key=lambda item: (item[1], item[0]))
    wanted = {
        "full": max(ranks.values()),
        "auto": how.smallest_rank,
        "threshold": how.smallest_rank,
    }
    asked = wanted[how.rank] if isinstance(how.rank, str) else how.rank
    if rank < asked:
        log.warning(
            "rank %d is capped at %d for all clients: client %d has no more samples; "
            "its group is uncertain",
            asked,
            rank,
            client,
        )


def _spectrum(client: Client, arrays: Any) -> Spectrum:
    """Return the client's spectrum, computed once per process (Eq. 2)."""
    if "spectrum" not in client.scratch:
        features = client.world.features("grouping", client.sample_ids)
        client.scratch["spectrum"] = spectrum(on_device(features, arrays))
    return client.scratch["spectrum"]

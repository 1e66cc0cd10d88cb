"""A client that arrives late joins its group by its eigenvectors alone; nothing is trained.

The clients that are there answer r(k, new) to its vectors (FB-NLL Eq. 3-5); the group whose members
answer highest on average takes it.
"""
# K clients, M groups, Q eigenvectors, D dimensions

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysim.core.spectra import spectrum
from raysim.data.features.feature_files import FeatureFile, FeatureWorld, read_features
from raysim.errors import DataError
from raysim.protocols import Client
from raysim.runs.models import FOLDER, RunModels
from raysim.runs.record import newest_known, parse_records
from raysim.standalone.comparison import answers
from raysim.standalone.feature_clusters import RESULT, read_clusters
from raysim.steps.arrays import to_numpy
from raysim.steps.grouping import GroupingSettings
from raysim.storage.files import read_array, reason
from raysim.storage.objects import Storage, open_storage

ORTHONORMAL = 1e-3
"""Largest difference between V'V and the identity that rounding to float16 explains."""


@dataclass(frozen=True, eq=False)
class Grouped:
    """Clients in groups, ready to answer."""

    root: str
    clients: list[Client]
    groups: np.ndarray
    rank: int
    dimension: int
    similarity: np.ndarray | None
    """R (K, K), where it was kept; not with landmarks."""
    arrays: Any = "auto"
    storage: Storage | None = None
    """Of the run, where there may be models."""

    def model(self, group: int) -> str | None:
        """Return the file of a group's model, where there is one."""
        name = f"{FOLDER}/group-{group}.safetensors"
        if self.storage is None or not self.storage.exists(name):
            return None
        return f"{self.storage.root}/{name}"


@dataclass(frozen=True, eq=False)
class Assignment:
    """Where a late client belongs."""

    group: int
    relevance: dict[int, float]
    """Mean answer of every group's members, by group."""
    margin: float | None
    """How far the second group is behind; None: there is one group."""
    second: int | None
    rank: int
    typical: float | None
    """Mean R of clients of the same group, where it is known."""
    foreign: float | None
    """Mean R of clients of different groups."""
    model: str | None

    @property
    def fits(self) -> bool | None:
        """Whether the answers are nearer to those within groups than to those between them."""
        if self.typical is None or self.foreign is None:
            return None
        return self.relevance[self.group] >= (self.typical + self.foreign) / 2


def open_grouped(place: str) -> Grouped:
    """Return the clients of a run directory, or of a folder that `raysim cluster` wrote."""
    storage = open_storage(place)
    try:
        if storage.exists("config.yaml"):
            return _from_run(storage)
        if storage.exists(RESULT):
            return _from_files(place)
    except OSError as wrong:
        raise DataError(f"{place} cannot be read ({reason(wrong)}); make it reachable") from wrong
    raise DataError(
        f"{place} must be a run directory or a folder of `raysim cluster`, got neither; correct it"
    )


def assign(grouped: Grouped, newcomers: Sequence[np.ndarray]) -> list[Assignment]:
    """Return the groups of clients with these eigenvectors (D, Q); Q may differ."""
    ranks = [min(grouped.rank, vectors.shape[1]) for vectors in newcomers]
    found: dict[int, Assignment] = {}
    for rank in sorted(set(ranks)):
        places = [i for i, own in enumerate(ranks) if own == rank]
        rows = np.stack([newcomers[i][:, :rank].T for i in places]).astype(np.float32)
        how = GroupingSettings(rank=rank)
        replies = answers(grouped.clients, rows, how, arrays=grouped.arrays)
        for i, reply in zip(places, replies.T, strict=True):
            found[i] = _assignment(grouped, reply.astype(np.float64), rank)
    return [found[i] for i in range(len(newcomers))]


def _assignment(grouped: Grouped, reply: np.ndarray, rank: int) -> Assignment:
    """Return where the client belongs that got these answers r(k, new) (K,)."""
    names = np.unique(grouped.groups).tolist()
    means = {int(g): float(reply[grouped.groups == g].mean()) for g in names}
    order = sorted(means, key=lambda g: (-means[g], g))
    typical, foreign = _typical(grouped)
    return Assignment(
        group=order[0],
        relevance=means,
        margin=means[order[0]] - means[order[1]] if len(order) > 1 else None,
        second=order[1] if len(order) > 1 else None,
        rank=rank,
        typical=typical,
        foreign=foreign,
        model=grouped.model(order[0]),
    )


def vectors_of_features(grouped: Grouped, path: str) -> np.ndarray:
    """Return the leading eigenvectors of the features (N, D) in a file."""
    rows = read_features(FeatureFile(Path(path).stem, path))
    _check_dimension(grouped, path, rows.shape, axis=1)
    full = spectrum(rows)
    return to_numpy(full.vectors)[:, : grouped.rank]


def read_vectors(grouped: Grouped, path: str) -> np.ndarray:
    """Return the eigenvectors (D, Q) in a file, if that is what they are."""
    vectors = read_features(FeatureFile(Path(path).stem, path)).astype(np.float64)
    _check_dimension(grouped, path, vectors.shape, axis=0)
    off = float(np.abs(vectors.T @ vectors - np.eye(vectors.shape[1])).max())
    if off > ORTHONORMAL:
        raise DataError(
            f"{path} must hold orthonormal columns, got V'V off the identity by {off:.2g}; save "
            "the eigenvectors of the features, or leave out --vectors for the features themselves"
        )
    return vectors


def _check_dimension(grouped: Grouped, path: str, shape: tuple[int, ...], *, axis: int) -> None:
    if shape[axis] == grouped.dimension:
        return
    what = "features (N, D)" if axis else "eigenvectors (D, Q)"
    raise DataError(
        f"{path} must hold {what} with D = {grouped.dimension} as in {grouped.root}, got shape "
        f"{shape}; compute the same features as there"
    )


def _typical(grouped: Grouped) -> tuple[float | None, float | None]:
    """Return the mean R within groups and between them."""
    if grouped.similarity is None:
        return None, None
    same = grouped.groups[:, None] == grouped.groups[None, :]
    others = ~np.eye(len(same), dtype=bool)
    pairs = (same & others, ~same)
    within, between = (
        float(grouped.similarity[mask].mean()) if mask.any() else None for mask in pairs
    )
    return within, between


# ---- where the clients are -----------------------------------------------------------------


def _from_files(place: str) -> Grouped:
    result, similarity = read_clusters(place)
    files = [FeatureFile(c["name"], c["path"], c["member"]) for c in result["clients"]]
    gone = [file.path for file in files if not Path(file.path).is_file()]
    if gone:
        raise DataError(
            f"{place} was made from {gone[0]}, which is not there; the clients answer from their "
            "features: put the files back, or cluster again"
        )
    return Grouped(
        root=place,
        clients=FeatureWorld(files).clients(),
        groups=np.array([c["group"] for c in result["clients"]]),
        rank=int(result["rank"]),
        dimension=int(result["dimension"]),
        similarity=similarity,
    )


def _from_run(storage: Storage) -> Grouped:
    run = RunModels(storage.root)
    config, data = run.config, run.data  # refused where the data is not that of the run
    groups, rank = _grouping(storage)
    if len(data.split.clients) != len(groups):
        raise DataError(
            f"{storage.root} has groups of {len(groups)} clients, its data now has "
            f"{len(data.split.clients)}; put the data of the run back"
        )
    world = data.spec().open()
    matrix, name = None, "artifacts/similarity.npy"
    if storage.exists(name):
        matrix = read_array(
            io.BytesIO(storage.read(name)),
            lambda wrong: f"{storage.root}/{name} is damaged ({wrong}); run it again",
        )
    return Grouped(
        root=storage.root,
        clients=[Client(record, world) for record in data.client_records()],
        groups=groups,
        rank=rank,
        dimension=data.dimensions(("grouping",))["grouping"],
        similarity=matrix,
        arrays=config.arrays,
        storage=storage,
    )


def _grouping(storage: Storage) -> tuple[np.ndarray, int]:
    """Return the newest groups of a run that compared its clients, and the rank it used."""
    content = storage.read("rounds.jsonl") if storage.exists("rounds.jsonl") else b""
    records, damaged = parse_records(content.decode(errors="replace"))
    if damaged:
        wrong = next(iter(damaged.values()))
        raise DataError(f"{storage.root}/rounds.jsonl is damaged ({wrong}); run it again")
    ranks = [r.rank for r in records if r.rank is not None and r.groups is not None]
    if not ranks:
        raise DataError(
            f"{storage.root} must be a run that groups clients by similarity, got none with a rank "
            "in its records; use one of fb_nll, fb_nll_minus, rcc_pfl, or a method with "
            "method.groups.kind=similarity"
        )
    return np.array(newest_known(records, "groups"), dtype=np.int64), ranks[-1]

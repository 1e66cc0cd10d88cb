"""What a partition is: the registry, the split it gives, and what all of them need.

The order of steps is fixed (partitions_and_noise.md): the server's clean images are taken out, the
rest is divided by its *true* labels, impurity is added; noise (``raysim.data.noise``) comes last.
"""
# N samples, K clients, M tasks

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raysim.data.datasets.task_classes import Tasks
from raysim.errors import ConfigError, DataError
from raysim.settings import Registry

TaskTable = Callable[[int], Tasks | None]
"""A dataset's published tasks for a number of groups, or None where it has no table."""

MAX_DRAWS = 1000


@dataclass(frozen=True, eq=False)
class Split:
    """Where every training sample is; ids are rows of the training set, int64."""

    clients: tuple[np.ndarray, ...]
    """Sample ids of each client, ascending: own and foreign samples are not told apart by place."""
    tasks: Tasks
    """Classes of each task."""
    task_of: np.ndarray
    """Task of each client, (K,) int64; clients of one task have consecutive numbers."""
    server_ids: np.ndarray
    """The server's clean samples, ascending; empty if it holds none."""
    source: str = ""
    """The split file this came from, if any: ``noise: {kind: file}`` reads its labels there."""


class Partition(Protocol):
    """A configured way to divide a training set."""

    @property
    def clients(self) -> int:
        """Number of clients, known before any data is loaded."""
        ...

    @property
    def groups(self) -> int:
        """Number of tasks, known before any data is loaded."""
        ...

    def make_split(
        self,
        labels: np.ndarray,
        *,
        classes: int,
        task_table: TaskTable,
        per_class: int,
        rng: np.random.Generator,
        digest: str = "",
    ) -> Split:
        """Divide by the true ``labels``; the server first takes ``per_class`` of each class.

        ``digest`` names the dataset's content; a split stored for other content is refused.
        """
        ...


PARTITIONS: Registry[Partition] = Registry("partition", key="kind", home="raysim.data.partition")


def floor_share(rate: float, count: int) -> int:
    """Return floor(rate * count) of the decimal rate as written: 0.29 of 100 is 29, not 28."""
    return math.floor(rate * count + 1e-9)


def draw_clean_set(
    labels: np.ndarray, *, classes: int, per_class: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the ids of ``per_class`` random samples of every class, ascending (section 3)."""
    if per_class == 0:
        return np.empty(0, dtype=np.int64)
    counts = np.bincount(labels, minlength=classes)
    short = np.flatnonzero(counts < per_class)
    if short.size and counts[short[0]] == 0:
        raise ConfigError(
            f"data.server.per_class must be 0 here, got {per_class}: class {short[0]} would have "
            "no clean image at the server, the training set has none; set it to 0 or use other data"
        )
    if short.size:
        raise ConfigError(
            f"data.server.per_class must be at most the images of every class, got {per_class}, "
            f"but class {short[0]} has {counts[short[0]]}; lower it to {counts.min()} or less"
        )
    members = [np.flatnonzero(labels == c) for c in range(classes)]
    return np.sort(np.concatenate([rng.choice(m, per_class, replace=False) for m in members]))


def check_split(split: Split, labels: np.ndarray, *, claimed: np.ndarray | None = None) -> None:
    """Refuse a split with shared or unknown samples, or not all ``claimed`` ones (section 12)."""
    known = sorted(c for task in split.tasks for c in task)
    _require(len(known) == len(set(known)), f"tasks share a class: {split.tasks}")
    _require(len(split.task_of) == len(split.clients), "task_of and clients differ in length")
    inside = (split.task_of >= 0) & (split.task_of < len(split.tasks))
    _require(bool(inside.all()), f"a client has a task outside 0..{len(split.tasks) - 1}")
    empty = [k for k, ids in enumerate(split.clients) if not len(ids)]
    _require(not empty, f"clients {empty} hold no sample")
    held = np.concatenate([*split.clients, split.server_ids])
    bad = held[(held < 0) | (held >= len(labels))]
    _require(not bad.size, f"sample {bad[:1]} is outside the {len(labels)} training samples")
    ids, counts = np.unique(held, return_counts=True)
    twice = ids[counts > 1]
    _require(not twice.size, f"{twice.size} samples are held twice, first {twice[:1]}")
    if claimed is not None:
        off = np.setxor1d(ids, claimed)
        _require(not off.size, f"{off.size} samples are lost or not claimed, first {off[:1]}")


def _require(ok: bool, found: str) -> None:
    if not ok:
        raise DataError(f"split does not fit the training set: {found}; export or draw it again")

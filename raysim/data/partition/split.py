"""What a partition is: the registry, the split it gives, and what kinds that draw share.

The order of steps is fixed: the server's clean images are taken out, the rest is divided by its
*true* labels, impurity is added; noise (``raysim.data.noise``) comes last. What each kind follows:
raysim/docs/sheets/partitions.md.
"""
# N samples, K clients, M tasks

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.errors import ConfigError, DataError
from raysim.settings import In, Registry, settings

T = TypeVar("T")
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


class Partition(ABC):
    """A configured way to divide a training set."""

    __slots__ = ()

    @property
    @abstractmethod
    def clients(self) -> int:
        """Number of clients, known before any data is loaded."""

    @property
    def groups(self) -> int:
        """Number of tasks, known before any data is loaded; one: all clients see all classes."""
        return 1

    @abstractmethod
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


PARTITIONS: Registry[Partition] = Registry("partition", key="kind", home="raysim.data.partition")


def floor_share(rate: float, count: int) -> int:
    """Return floor(rate * count) of the decimal rate as written: 0.29 of 100 is 29, not 28."""
    return math.floor(rate * count + 1e-9)


@settings
class PartitionKind(Partition):
    """A partition that is drawn: a kind holds its settings and writes ``divide``.

    Not ``split``, which is a setting of kind ``tasks``.
    """

    # ours; FedCorr, FedFixer, FedRN and ClipFL have 100
    clients: Annotated[int, In("[1, inf)", do="raise clients")] = 12

    @property
    def fewest(self) -> int:
        """Samples that every client gets at least."""
        return 1

    @abstractmethod
    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """Return which of the samples ``ids`` each client gets; ``labels`` are those of all."""

    def tasks(self, classes: int, task_table: TaskTable) -> Tasks:
        return (tuple(range(classes)),)

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
        """Divide what the server leaves; ``digest`` does not matter here."""
        tasks = self.tasks(classes, task_table)
        server_ids = draw_clean_set(labels, classes=classes, per_class=per_class, rng=rng)
        ids = np.setdiff1d(np.arange(len(labels)), server_ids, assume_unique=True)
        if len(ids) < self.clients * self.fewest:
            raise ConfigError(
                f"data.partition.clients must leave every client {self.fewest} or more samples: "
                f"{self.clients} clients need {self.clients * self.fewest}, got {len(ids)}; lower "
                "it, what each client needs, or data.server.per_class"
            )
        shares = self.divide(ids, labels, tasks=tasks, rng=rng)
        heads = clients_per_task(self.clients, len(tasks))
        return Split(
            clients=tuple(np.sort(share) for share in shares),
            tasks=tasks,
            task_of=np.repeat(np.arange(len(tasks)), heads),
            server_ids=server_ids,
        )


def clients_per_task(clients: int, groups: int) -> list[int]:
    """Return K // M clients per task, one more for the first K mod M tasks."""
    return [clients // groups + (m < clients % groups) for m in range(groups)]


def draw_clean_set(
    labels: np.ndarray, *, classes: int, per_class: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the ids of ``per_class`` random samples of every class, ascending."""
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


def draw_until(
    draw: Callable[[], tuple[T, np.ndarray]], fewest: int, *, who: str, count: int, do: str
) -> T:
    """Return the first draw whose sizes all reach ``fewest``; ``draw`` returns (drawn, sizes).

    ``who`` shares ``count`` samples, for the error when ``MAX_DRAWS`` draws were not enough.
    """
    best = 0
    for _ in range(MAX_DRAWS):
        drawn, sizes = draw()
        smallest = int(sizes.min())
        if smallest >= fewest:
            return drawn
        best = max(best, smallest)
    raise ConfigError(
        f"data.partition.min_client_size {fewest} was not reached in {MAX_DRAWS} draws: the best "
        f"one got {best} of {count} samples for the smallest of {who}; {do}"
    )


def deal(parts: Sequence[np.ndarray], cuts: np.ndarray) -> list[np.ndarray]:
    """Return the clients' pieces of all parts; row p of ``cuts`` says where part p is cut."""
    pieces = [np.split(part, cut[:-1]) for part, cut in zip(parts, cuts, strict=True)]
    return [np.concatenate(piece) for piece in zip(*pieces, strict=True)]


def check_split(split: Split, labels: np.ndarray, *, claimed: np.ndarray | None = None) -> None:
    """Refuse a split with shared or unknown samples, or not all ``claimed`` ones."""
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

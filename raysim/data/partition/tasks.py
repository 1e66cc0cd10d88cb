"""Clients with tasks: one block of clients per set of classes, with some impurity.

FB-NLL is ``{split: iid, impurity_rate: 0.08, impurity: pool}``; RCC-PFL, without server images, is
``{split: dirichlet, alpha: 2, impurity_rate: 0.05, impurity: foreign, min_client_size: 100}``.
"""
# N samples, K clients, M tasks

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.data.partition.split import (
    PARTITIONS,
    PartitionKind,
    TaskTable,
    clients_per_task,
    deal,
    draw_until,
    floor_share,
)
from raysim.errors import ConfigError
from raysim.settings import In, check, settings


@PARTITIONS.register("tasks")
@settings
class TaskPartition(PartitionKind):
    """Clients of a task share the task's samples; a minority of samples comes from other tasks."""

    groups: Annotated[int, In("[1, inf)")] = 3
    """Number of tasks (M in the papers)."""
    split: Literal["iid", "dirichlet", "dirichlet_per_class"] = "iid"
    """How a task's samples are cut: evenly (FB-NLL), by one Dirichlet draw (RCC-PFL: sizes differ,
    class shares do not), or by one draw per class (the other reading of RCC-PFL)."""
    impurity_rate: Annotated[float, In("[0, 1)")] = 0.05
    """FB-NLL: 0.08 of each task's samples; RCC-PFL: 0.05 of each client's own size."""
    impurity: Literal["pool", "foreign"] = "pool"
    """``pool`` (FB-NLL): that share of every task is mixed and spread evenly over all clients, own
    task included. ``foreign`` (RCC-PFL): it comes from the other tasks only."""
    # RCC-PFL, "Datasets and Models"; used by the Dirichlet splits only
    alpha: Annotated[float, In("(0, inf)")] = 2.0
    min_client_size: Annotated[int, In("[1, inf)")] = 1
    """Fewest samples of its task a client may have, before impurity; Dirichlet draws are repeated
    until it holds. RCC-PFL needs 100: eigenvectors of smaller clients are unreliable."""

    def __post_init__(self) -> None:
        check(
            self.clients >= self.groups,
            "clients",
            f"must be at least groups ({self.groups}), or a task has zero clients",
            got=self.clients,
            do="raise clients or lower groups",
        )
        check(
            self.impurity_rate == 0.0 or self.impurity == "pool" or self.groups > 1,
            "impurity",
            "cannot be foreign with a single group: there is no other task to take samples from",
            got=self.impurity,
            do="set impurity_rate to 0 or raise groups",
        )

    @property
    def fewest(self) -> int:
        """0: ``divide`` counts what each task has for its own clients."""
        return 0

    def tasks(self, classes: int, task_table: TaskTable) -> Tasks:
        """Return the dataset's published tasks, or its classes in order."""
        if self.groups > classes:
            raise ConfigError(
                f"data.partition.groups must be at most the number of classes ({classes}), got "
                f"{self.groups}; lower it"
            )
        return task_table(self.groups) or classes_in_order(classes, self.groups)

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Cut every task among its clients and hand out what is kept back for impurity."""
        samples = [rng.permutation(ids[np.isin(labels[ids], task)]) for task in tasks]
        heads = clients_per_task(self.clients, self.groups)
        sizes = np.array([len(task) for task in samples])
        if self.impurity_rate == 0.0:
            held_back = [0] * len(sizes)
        elif self.impurity == "pool":
            held_back = [floor_share(self.impurity_rate, int(n)) for n in sizes]
        else:
            held_back = _foreign_pool_sizes(sizes, self.impurity_rate)
        for m, (size, n, head) in enumerate(zip(sizes, held_back, heads, strict=True)):
            needed = head * self.min_client_size
            if size - n < needed:  # a pool below 0 comes only with another above its task's size
                raise ConfigError(
                    f"data.partition.clients must leave every client {self.min_client_size} or "
                    f"more of its task's samples: the {head} clients of task {m} need {needed}, "
                    f"got {size} samples of which impurity takes {n}; lower clients, "
                    "data.partition.impurity_rate, data.partition.min_client_size or "
                    "data.server.per_class"
                )

        pools = [task[:n] for task, n in zip(samples, held_back, strict=True)]
        own = []
        for m, (task, n) in enumerate(zip(samples, held_back, strict=True)):
            kept = task[n:]
            parts = [kept]  # of one draw each
            if self.split == "dirichlet_per_class":
                parts = [kept[labels[kept] == c] for c in tasks[m]]
            own.append(self._cut(m, parts, heads[m], rng))
        if self.impurity == "pool" or not any(held_back):
            extra = np.array_split(rng.permutation(np.concatenate(pools)), self.clients)
        else:
            extra = _hand_to_others(pools, own, rng)
        everyone = [share for task in own for share in task]
        return [np.concatenate(pair) for pair in zip(everyone, extra, strict=True)]

    def _cut(
        self, task: int, parts: Sequence[np.ndarray], head: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return the own samples of a task's ``head`` clients; every part is cut separately."""
        if self.split == "iid":
            return np.array_split(np.concatenate(parts), head)
        lengths = np.array([len(part) for part in parts])[:, None]

        def draw() -> tuple[np.ndarray, np.ndarray]:
            draws = rng.dirichlet(np.full(head, self.alpha), size=len(parts))
            cuts = np.rint(np.cumsum(draws, axis=1) * lengths).astype(np.int64)
            return cuts, np.diff(cuts, axis=1, prepend=0).sum(axis=0)

        who, count = f"the {head} clients of task {task}", int(lengths.sum())
        do = (
            f"lower data.partition.clients (now {self.clients}) or raise data.partition.alpha (now "
            f"{self.alpha})"
        )
        return deal(parts, draw_until(draw, self.min_client_size, who=who, count=count, do=do))


def classes_in_order(classes: int, groups: int) -> Tasks:
    """Return classes 0, 1, ... cut evenly into ``groups`` tasks, for datasets without a table."""
    return tuple(tuple(map(int, part)) for part in np.array_split(np.arange(classes), groups))


def _foreign_pool_sizes(sizes: np.ndarray, rate: float) -> list[int]:
    """Return pools P_j from which every client can get ``rate`` of its own size, own task excluded.

    Clients of task m want rate (N_m - P_m) samples, uniformly from the other tasks: N_j / (N - N_m)
    of them from task j. Demand equals supply where P_j = sum over m != j of rate (N_m - P_m) N_j /
    (N - N_m), a linear system. Equal tasks give rate / (1 + rate), "about 5 %"; a plain
    5 % of each task would leave the larger of two unequal tasks short of foreign samples.
    """
    others = sizes.sum() - sizes
    if np.any(others == 0):
        return [0] * len(sizes)  # the other tasks are empty, which ``divide`` refuses
    wanted = rate * sizes[:, None] / others[None, :]  # [j, m], per own sample of task m
    np.fill_diagonal(wanted, 0.0)
    pools = np.linalg.solve(np.eye(len(sizes)) + wanted, wanted @ sizes)
    # Six digits first: the last bits of the solution differ between BLAS builds, a split must not.
    return [int(n) for n in np.rint(np.round(pools, 6))]


def _hand_to_others(
    pools: Sequence[np.ndarray], own: Sequence[Sequence[np.ndarray]], rng: np.random.Generator
) -> list[np.ndarray]:
    """Return foreign samples in proportion to each client's own size."""
    own_sizes = [[len(ids) for ids in task] for task in own]
    totals = np.array([sum(sizes) for sizes in own_sizes], dtype=np.float64)
    whole = totals + [len(pool) for pool in pools]
    demand = totals / (whole.sum() - whole)  # of task m on every other task, relative to its size
    bundles: list[list[np.ndarray]] = [[] for _ in pools]
    for j, pool in enumerate(pools):
        weights = np.where(np.arange(len(pools)) == j, 0.0, demand)
        for bundle, piece in zip(bundles, _proportional(pool, weights), strict=True):
            bundle.append(piece)
    return [
        piece
        for bundle, sizes in zip(bundles, own_sizes, strict=True)
        for piece in _proportional(rng.permutation(np.concatenate(bundle)), np.array(sizes, float))
    ]


def _proportional(ids: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """Return consecutive pieces of ``ids``, sized in proportion to ``weights`` to within one."""
    cuts = np.rint(np.cumsum(weights) / weights.sum() * len(ids)).astype(np.int64)
    return np.split(ids, cuts[:-1])

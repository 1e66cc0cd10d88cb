"""Samples of a class by Dirichlet shares of the clients (ClipFL, FedRN; FedCorr, FedFixer).

ClipFL and FedRN cut each class (or block) over all clients: one that already has N / K samples gets
none of the next class. In FedCorr and FedFixer a client has some classes only (Xu et al., CVPR
2022). Everything is drawn again until the smallest client is large enough; in FedCorr's way, and
with classes that no client has, that is ours: the released code has neither guard.
"""
# N samples, K clients, C classes, P parts: classes or blocks

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.data.partition.split import (
    MAX_DRAWS,
    PARTITIONS,
    PartitionKind,
    deal,
    draw_until,
)
from raysim.errors import ConfigError
from raysim.settings import In, settings


@settings
class DirichletCuts(PartitionKind):
    """Every part of the samples is shuffled and cut by a draw of its own."""

    alpha: Annotated[float, In("(0, 1e6]", "use partition iid for even shares")] = 0.5
    min_client_size: Annotated[int, In("[1, inf)")] = 10  # FedRN; ClipFL's library has 15

    @property
    def fewest(self) -> int:
        return self.min_client_size

    def cut(
        self, parts: Sequence[np.ndarray], *, balance: bool, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return the clients' shares of all parts."""
        lengths = [len(part) for part in parts]

        def draw() -> tuple[np.ndarray, np.ndarray]:
            cuts = draw_cuts(lengths, self.clients, self.alpha, balance=balance, rng=rng)
            return cuts, np.diff(cuts, axis=1, prepend=0).sum(axis=0)

        do = f"lower data.partition.clients or min_client_size, or raise alpha (now {self.alpha})"
        who, count = f"{self.clients} clients", sum(lengths)
        cuts = draw_until(draw, self.min_client_size, who=who, count=count, do=do)
        return deal([rng.permutation(part) for part in parts], cuts)


@PARTITIONS.register("dirichlet")
@settings
class Dirichlet(DirichletCuts):
    """Dirichlet shares of every class (ClipFL; FedRN as its paper says)."""

    balance: bool = True
    """Leave clients that have N / K samples out of the next classes, as both papers' code does."""

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> list[np.ndarray]:
        parts = [ids[labels[ids] == c] for c in tasks[0]]
        return self.cut(parts, balance=self.balance, rng=rng)


@PARTITIONS.register("dirichlet_blockwise")
@settings
class DirichletBlockwise(DirichletCuts):
    """Dirichlet shares of blocks in file order: sizes differ, classes hardly (FedRN's code).

    FedRN's released code numbers the samples 0..0, 1..1, ... in file order where labels belong,
    which is what its Dirichlet tables show.
    """

    blocks: Annotated[int, In("[1, inf)")] = 10

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> list[np.ndarray]:
        return self.cut(np.array_split(ids, self.blocks), balance=True, rng=rng)


@PARTITIONS.register("bernoulli_dirichlet")
@settings
class BernoulliDirichlet(PartitionKind):
    """Each class with probability p, its samples by Dirichlet shares (FedCorr, FedFixer)."""

    # p; FedFixer's Table 4 also has 0.3, 0.5 and 0.9
    class_rate: Annotated[float, In("(0, 1]")] = 0.7
    """Probability that a client has a class."""
    alpha: Annotated[float, In("(0, 1e6]", "use partition iid for even shares")] = 10.0  # alpha_Dir
    min_client_size: Annotated[int, In("[1, inf)")] = 1
    """Fewest samples of a client; everything is drawn again until it holds."""

    @property
    def fewest(self) -> int:
        return self.min_client_size

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> list[np.ndarray]:
        def draw() -> tuple[np.ndarray, np.ndarray]:
            # Phi ~ Bernoulli(p), (K, C), first without an empty row, then without an empty column
            drawn = rng.random((self.clients, len(tasks[0]))) < self.class_rate
            has_class = self._fill(self._fill(drawn, rng).T, rng).T
            owners = self._draw_owners(labels[ids], has_class, rng)
            return owners, np.bincount(owners, minlength=self.clients)

        do = f"lower data.partition.clients or raise alpha (now {self.alpha}) or class_rate"
        who = f"{self.clients} clients"
        owners = draw_until(draw, self.min_client_size, who=who, count=len(ids), do=do)
        ends = np.cumsum(np.bincount(owners, minlength=self.clients))
        return np.split(ids[np.argsort(owners, kind="stable")], ends[:-1])

    def _fill(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return ``rows`` with the empty ones drawn again until none is."""
        filled = rows.copy()
        for _ in range(MAX_DRAWS):
            empty = ~filled.any(axis=1)
            if not empty.any():
                return filled
            filled[empty] = rng.random((int(empty.sum()), rows.shape[1])) < self.class_rate
        raise ConfigError(
            f"data.partition.class_rate left a client without a class, or a class without a client "
            f"in {MAX_DRAWS} draws, got {self.class_rate}; raise it or data.partition.clients"
        )

    def _draw_owners(
        self, labels: np.ndarray, has_class: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return the client of every sample: categorical over those that have its class."""
        owners = np.empty(len(labels), dtype=np.int64)
        for label, column in enumerate(has_class.T):
            candidates, samples = np.flatnonzero(column), np.flatnonzero(labels == label)
            shares = rng.dirichlet(np.full(len(candidates), self.alpha))
            owners[samples] = rng.choice(candidates, size=len(samples), p=shares)
        return owners


def draw_cuts(
    lengths: Sequence[int],
    clients: int,
    alpha: float,
    *,
    balance: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return where each part is cut, (P, K) int64; the last column is the part's length."""
    target = sum(lengths) / clients
    held = np.zeros(clients, dtype=np.int64)
    cuts = np.empty((len(lengths), clients), dtype=np.int64)
    for row, length in zip(cuts, lengths, strict=True):
        may_get = held < target if balance and length else np.full(clients, True)
        # Shares over all clients, the full ones' set to 0 and the rest renormalised, are Dirichlet
        # over the rest: drawn so at once, they cannot all be 0.
        shares = np.zeros(clients)
        shares[may_get] = rng.dirichlet(np.full(int(may_get.sum()), alpha))
        row[:] = np.rint(np.cumsum(shares) * length)
        row[-1] = length
        held += np.diff(row, prepend=0)
    return cuts

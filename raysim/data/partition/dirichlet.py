"""Each class (or block) cut by Dirichlet shares over all clients (ClipFL, FedRN).

partitions_and_noise.md sections 7 and 8: a client that already has N / K samples gets none of the
next class, and everything is drawn again until the smallest client is large enough.
"""
# N samples, K clients, P parts: classes or blocks

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysim.data.partition.one_task import OneTask, check_alpha, no_draw_fits
from raysim.data.partition.split import MAX_DRAWS, PARTITIONS
from raysim.settings import check, settings


@PARTITIONS.register("dirichlet")
@settings
class Dirichlet(OneTask):
    """Dirichlet shares of every class (ClipFL; FedRN as its paper says)."""

    alpha: float = 0.5
    min_client_size: int = 10  # FedRN; ClipFL's library has 15
    balance: bool = True
    """Leave clients that have N / K samples out of the next classes, as both papers' code does."""

    def __post_init__(self) -> None:
        OneTask.__post_init__(self)
        check_alpha(self.alpha, self.min_client_size)

    @property
    def fewest(self) -> int:
        """The set size."""
        return self.min_client_size

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, classes: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return shares of every class."""
        parts = [ids[labels == c] for c in range(classes)]
        return _cut(parts, self, balance=self.balance, rng=rng)


@PARTITIONS.register("dirichlet_blockwise")
@settings
class DirichletBlockwise(OneTask):
    """Dirichlet shares of blocks in file order: sizes differ, classes hardly (FedRN's code).

    FedRN's released code numbers the samples 0..0, 1..1, ... in file order where labels belong,
    which is what its Dirichlet tables show.
    """

    alpha: float = 0.5
    min_client_size: int = 10
    blocks: int = 10

    def __post_init__(self) -> None:
        OneTask.__post_init__(self)
        check_alpha(self.alpha, self.min_client_size)
        check(self.blocks >= 1, "blocks", "must be at least 1", got=self.blocks)

    @property
    def fewest(self) -> int:
        """The set size."""
        return self.min_client_size

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, classes: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return shares of every block of consecutive samples."""
        return _cut(np.array_split(ids, self.blocks), self, balance=True, rng=rng)


def _cut(
    parts: Sequence[np.ndarray],
    partition: Dirichlet | DirichletBlockwise,
    *,
    balance: bool,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Return the clients' samples: every part is shuffled and cut by its own draw."""
    clients, alpha, fewest = partition.clients, partition.alpha, partition.min_client_size
    lengths = [len(part) for part in parts]
    best = 0
    for _ in range(MAX_DRAWS):
        cuts = draw_cuts(lengths, clients, alpha, balance=balance, rng=rng)
        smallest = int(np.diff(cuts, axis=1, prepend=0).sum(axis=0).min())
        if smallest >= fewest:
            pieces = [
                np.split(rng.permutation(part), cut[:-1])
                for part, cut in zip(parts, cuts, strict=True)
            ]
            return [np.concatenate(piece) for piece in zip(*pieces, strict=True)]
        best = max(best, smallest)
    do = f"lower data.partition.clients or min_client_size, or raise alpha (now {alpha})"
    raise no_draw_fits(fewest, best, sum(lengths), clients=clients, do=do)


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

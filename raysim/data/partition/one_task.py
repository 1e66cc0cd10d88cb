"""Partitions of one global task: every client is tested on all classes."""
# N samples, K clients

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from raysim.data.partition.split import MAX_DRAWS, Split, TaskTable, draw_clean_set
from raysim.errors import ConfigError
from raysim.settings import check, settings


@settings
class OneTask(ABC):
    """What these partitions share; a subclass says in ``divide`` who gets which sample."""

    clients: int = 12  # ours; FedCorr, FedFixer, FedRN and ClipFL have 100

    def __post_init__(self) -> None:
        check(self.clients >= 1, "clients", "must be at least 1", got=self.clients)

    @property
    def groups(self) -> int:
        """One task."""
        return 1

    @property
    def fewest(self) -> int:
        """Samples that every client gets at least."""
        return 1

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
        """Divide what the server leaves; ``task_table`` and ``digest`` do not matter here."""
        server_ids = draw_clean_set(labels, classes=classes, per_class=per_class, rng=rng)
        ids = np.setdiff1d(np.arange(len(labels)), server_ids, assume_unique=True)
        if len(ids) < self.clients * self.fewest:
            raise ConfigError(
                f"data.partition.clients must leave every client {self.fewest} or more samples: "
                f"{self.clients} clients need {self.clients * self.fewest}, got {len(ids)}; lower "
                "it, what each client needs, or data.server.per_class"
            )
        shares = self.divide(ids, labels[ids], classes=classes, rng=rng)
        return Split(
            clients=tuple(np.sort(share) for share in shares),
            tasks=(tuple(range(classes)),),
            task_of=np.zeros(self.clients, dtype=np.int64),
            server_ids=server_ids,
        )

    @abstractmethod
    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, classes: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return the sample ids of every client; ``labels`` are the true ones of ``ids``."""


def check_alpha(alpha: float, min_client_size: int) -> None:
    """Refuse what no Dirichlet draw could be made with."""
    do = "use partition iid for even shares"
    check(0.0 < alpha <= 1e6, "alpha", "must be above 0 and at most 1e6", got=alpha, do=do)
    size = min_client_size
    check(size >= 1, "min_client_size", "must be at least 1", got=size)


def no_draw_fits(fewest: int, best: int, count: int, *, clients: int, do: str) -> ConfigError:
    """Return the error for draws that always left a client too small."""
    return ConfigError(
        f"data.partition.min_client_size {fewest} was not reached in {MAX_DRAWS} draws: the best "
        f"one got {best} of {count} samples for the smallest of {clients} clients; {do}"
    )

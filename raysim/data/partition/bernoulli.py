"""Some classes per client, samples of a class by Dirichlet shares (FedCorr, FedFixer).

Xu et al., CVPR 2022; partitions_and_noise.md section 6. Redrawing an empty column and small clients
is ours: the released code has neither guard.
"""
# K clients, C classes

from __future__ import annotations

import numpy as np

from raysim.data.partition.one_task import OneTask, check_alpha, no_draw_fits
from raysim.data.partition.split import MAX_DRAWS, PARTITIONS
from raysim.errors import ConfigError
from raysim.settings import check, settings


@PARTITIONS.register("bernoulli_dirichlet")
@settings
class BernoulliDirichlet(OneTask):
    """Each class with probability p, its samples by Dirichlet shares (FedCorr, FedFixer)."""

    class_rate: float = 0.7  # p; FedFixer's Table 4 also has 0.3, 0.5 and 0.9
    """Probability that a client has a class."""
    alpha: float = 10.0  # alpha_Dir
    min_client_size: int = 1
    """Fewest samples of a client; everything is drawn again until it holds."""

    def __post_init__(self) -> None:
        OneTask.__post_init__(self)
        rate = self.class_rate
        check(0.0 < rate <= 1.0, "class_rate", "must be above 0 and at most 1", got=rate)
        check_alpha(self.alpha, self.min_client_size)

    @property
    def fewest(self) -> int:
        """The set size."""
        return self.min_client_size

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, classes: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return each client's samples of the classes it has."""
        best = 0
        for _ in range(MAX_DRAWS):
            has_class = self._draw_classes(classes, rng)
            owners = self._draw_owners(labels, has_class, rng)
            sizes = np.bincount(owners, minlength=self.clients)
            if sizes.min() >= self.min_client_size:
                by_owner = ids[np.argsort(owners, kind="stable")]
                return np.split(by_owner, np.cumsum(sizes)[:-1])
            best = max(best, int(sizes.min()))
        do = f"lower data.partition.clients or raise alpha (now {self.alpha}) or class_rate"
        fewest = self.min_client_size
        raise no_draw_fits(fewest, best, len(ids), clients=self.clients, do=do)

    def _draw_classes(self, classes: int, rng: np.random.Generator) -> np.ndarray:
        """Return Phi ~ Bernoulli(p) without an empty row, then without an empty column, (K, C)."""
        drawn = rng.random((self.clients, classes)) < self.class_rate
        rows_filled = self._redraw_empty(drawn, rng)
        return self._redraw_empty(rows_filled.T, rng).T

    def _redraw_empty(self, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
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

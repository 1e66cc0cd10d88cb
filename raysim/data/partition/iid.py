"""The same share of everything for every client."""

from __future__ import annotations

import numpy as np

from raysim.data.partition.one_task import OneTask
from raysim.data.partition.split import PARTITIONS
from raysim.settings import settings


@PARTITIONS.register("iid")
@settings
class Iid(OneTask):
    """All samples, shuffled and cut evenly (IID columns of FedCorr, FedFixer, ClipFL)."""

    drop_remainder: bool = False
    """Leave N mod K samples out, as FedCorr does (sheet section 6), so that all clients are of one
    size; false: the first N mod K clients get one more (ClipFL, section 7)."""

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, classes: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return K equal pieces of a shuffle."""
        shuffled = rng.permutation(ids)
        if self.drop_remainder:
            shuffled = shuffled[: len(ids) - len(ids) % self.clients]
        return np.array_split(shuffled, self.clients)

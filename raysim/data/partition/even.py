"""Even cuts of everything: of a shuffle (iid), or of samples sorted by label (shards)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.data.partition.split import PARTITIONS, PartitionKind
from raysim.settings import In, settings


@PARTITIONS.register("iid")
@settings
class Iid(PartitionKind):
    """All samples, shuffled and cut evenly (IID columns of FedCorr, FedFixer, ClipFL)."""

    drop_remainder: bool = False
    """Leave N mod K samples out, as FedCorr does, so that all clients are of one size; false: the
    first N mod K clients get one more (ClipFL)."""

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> list[np.ndarray]:
        shuffled = rng.permutation(ids)
        if self.drop_remainder:
            shuffled = shuffled[: len(ids) - len(ids) % self.clients]
        return np.array_split(shuffled, self.clients)


@PARTITIONS.register("shards")
@settings
class Shards(PartitionKind):
    """S shards of label-sorted samples for every client (FedRN, FedAvg's non-IID)."""

    # S: 2 and 5 on CIFAR-10, 20 on CIFAR-100, 10 on mini-WebVision
    shards_per_client: Annotated[int, In("[1, inf)")] = 2

    @property
    def fewest(self) -> int:
        """One sample in each of a client's shards."""
        return self.shards_per_client

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, tasks: Tasks, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return S of the K S shards for every client; sizes of shards differ by one at most."""
        count = self.clients * self.shards_per_client
        shards = np.array_split(ids[np.argsort(labels[ids], kind="stable")], count)
        dealt = rng.permutation(count).reshape(self.clients, self.shards_per_client)
        return [np.concatenate([shards[i] for i in row]) for row in dealt]

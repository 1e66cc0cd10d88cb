"""A few classes per client: samples sorted by label, cut into shards (FedRN).

Kim et al., CIKM 2022; partitions_and_noise.md section 8. The cut is McMahan et al.'s of 2017.
"""

from __future__ import annotations

import numpy as np

from raysim.data.partition.one_task import OneTask
from raysim.data.partition.split import PARTITIONS
from raysim.settings import check, settings


@PARTITIONS.register("shards")
@settings
class Shards(OneTask):
    """S shards of label-sorted samples for every client (FedRN, FedAvg's non-IID)."""

    shards_per_client: int = 2  # S: 2 and 5 on CIFAR-10, 20 on CIFAR-100, 10 on mini-WebVision

    def __post_init__(self) -> None:
        OneTask.__post_init__(self)
        got = self.shards_per_client
        check(got >= 1, "shards_per_client", "must be at least 1", got=got)

    @property
    def fewest(self) -> int:
        """One sample in each of a client's shards."""
        return self.shards_per_client

    def divide(
        self, ids: np.ndarray, labels: np.ndarray, *, classes: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Return S of the K S shards for every client; sizes of shards differ by one at most."""
        count = self.clients * self.shards_per_client
        shards = np.array_split(ids[np.argsort(labels, kind="stable")], count)
        dealt = rng.permutation(count).reshape(self.clients, self.shards_per_client)
        return [np.concatenate([shards[i] for i in row]) for row in dealt]

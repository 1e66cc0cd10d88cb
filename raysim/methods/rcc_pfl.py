"""RCC-PFL: robust clustering of clients from features (Ali and Arafa, ICC 2025, Algorithm 1).

Deviations from the paper:
- Eq. (4) multiplies over all d eigenvectors (``grouping.rank: full``). The trailing ones of a small
  client are noise and break the grouping, so ``auto`` compares 10 (30 on CIFAR-10), which recovers
  the published groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from raysim.methods import METHODS
from raysim.methods.clustered import clustered_stages
from raysim.protocols import Stage
from raysim.settings import settings
from raysim.steps.grouping import GroupingSettings, group_by_similarity

RANK = {"cifar10": 30}  # ours: errata_and_tables.md entry 2
RANK_ELSEWHERE = 10


@METHODS.register("rcc_pfl")
@settings
class RccPfl:
    """RCC-PFL (Ali and Arafa 2025): group by HoG spectra, train per group."""

    grouping: GroupingSettings = GroupingSettings()
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ("grouping",)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse settings that do not fit the data."""
        self._resolved(config).check(config, dimensions["grouping"])

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return Algorithm 1."""
        return clustered_stages(config, group=group_by_similarity(self._resolved(config)))

    def _resolved(self, config: Any) -> GroupingSettings:
        if self.grouping.rank != "auto":
            return self.grouping
        rank = RANK.get(config.data.dataset.choice_name, RANK_ELSEWHERE)
        return dataclasses.replace(self.grouping, rank=rank)

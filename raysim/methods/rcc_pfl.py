"""RCC-PFL: robust clustering of clients from features (Ali and Arafa, ICC 2025, Algorithm 1).

Deviations from the paper:
- Eq. (4) multiplies over all d eigenvectors (``grouping.rank: full``). The trailing ones of a small
  client are noise and break the grouping, so ``auto`` compares 10 (30 on CIFAR-10), which finds
  the true tasks in nearly all runs (raysim/docs/sheets/rcc_pfl.md).

Procedure 1 (Eq. 1-5) is FB-NLL's grouping with another rank, on HoG features (``data.features``):
see the table in fb_nll.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from raysim.methods.fb_nll import FbNllMinus
from raysim.methods.method import METHODS
from raysim.protocols import Stage
from raysim.settings import settings

RANK = {"cifar10": 30}  # ours: raysim/docs/sheets/rcc_pfl.md
RANK_ELSEWHERE = 10


@METHODS.register("rcc_pfl")
@settings
class RccPfl(FbNllMinus):
    """RCC-PFL (Ali and Arafa 2025): group by feature spectra (HoG), train per group."""

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        FbNllMinus.check(self._resolved(config), config, classes=classes, dimensions=dimensions)

    def grouping_stage(self, config: Any) -> Stage:
        return FbNllMinus.grouping_stage(self._resolved(config), config)

    def _resolved(self, config: Any) -> RccPfl:
        """Return the method with the rank q that ``auto`` stands for."""
        if self.grouping.rank != "auto":
            return self
        rank = RANK.get(config.data.dataset.choice_name, RANK_ELSEWHERE)
        return dataclasses.replace(self, grouping=dataclasses.replace(self.grouping, rank=rank))

"""FB-NLL.

Feature-based grouping and label correction (Ali and Arafa, 2026, arXiv 2604.19729, Algorithm 1).

Deviations from the paper, each because it is silent:
- the rank q keeps eigenvalues above ``grouping.threshold`` of the largest, and all clients use
  the smallest count;
- l, l2 and tau_sim are calibrated on the server's clean images unless set;
- local classes below ``correction.min_class_size`` samples go to Phase 2 (0 is the literal
  Procedure 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raysim.methods import METHODS
from raysim.methods.clustered import clustered_stages
from raysim.protocols import Stage
from raysim.settings import settings
from raysim.steps.correction import CorrectionSettings, correct_labels
from raysim.steps.grouping import GroupingSettings, group_by_similarity


@METHODS.register("fb_nll")
@settings
class FbNll:
    """FB-NLL (Ali and Arafa 2026): group by feature spectra, repair labels, train per group."""

    grouping: GroupingSettings = GroupingSettings()
    correction: CorrectionSettings = CorrectionSettings()
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ("grouping", "correction")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse settings that do not fit the data."""
        self.grouping.check(config, dimensions["grouping"])
        self.correction.check(config, dimensions["correction"])

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return Algorithm 1."""
        return clustered_stages(
            config,
            group=group_by_similarity(self.grouping),
            correct=correct_labels(self.correction),
        )


@METHODS.register("fb_nll_minus")
@settings
class FbNllMinus:
    """FB-NLL(-): the grouping of FB-NLL without label correction."""

    grouping: GroupingSettings = GroupingSettings()
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ("grouping",)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse settings that do not fit the data."""
        self.grouping.check(config, dimensions["grouping"])

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return Algorithm 1 without line 20."""
        return clustered_stages(config, group=group_by_similarity(self.grouping))

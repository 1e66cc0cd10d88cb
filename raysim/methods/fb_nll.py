"""FB-NLL: feature-based grouping and label correction (Ali and Arafa 2026, arXiv 2604.19729).

Where each step of the paper is (its steps serve other methods too; formulas and published numbers:
raysim/docs/sheets/fb_nll.md):

=====================================  =========================================================
Algorithm 1, lines 3-17, one walk      ``steps.grouping.exchange``: line by line, what clients and
                                       server send and which function computes it
Eq. 2, Algorithm 1, lines 4-7          ``core.spectra.spectrum``: covariance, top-q eigenpairs
Eq. 3, Eq. 4, Eq. 5 (Procedure 1)      ``core.similarity``: ``response``, ``ratios``, ``relevance``
                                       as printed; a run uses their float32 forms, same file
Eq. 6, line 17                         ``core.similarity.symmetric``
line 18                                ``core.clustering.cluster``: HAC, cut into M groups
line 20, Procedure 2                   ``steps.correction.correct_labels``; lines 2-6 and 11-21 at
                                       the client, 1 and 9-10 at the server
Procedure 2, lines 14-16 (Phase 1)     ``core.relabeling.decide``, ``apply_decisions``
Eq. 7, lines 17-21 (Phase 2)           ``core.relabeling.project``, ``apply_decisions``
Algorithm 1, lines 22-32               ``steps.group_training.train_groups_by``; line 26 is
                                       ``steps.local_training.train_task``, line 30 the mean of
                                       ``core.aggregation``
IFCA-PFL (Algorithm 2)                 ``methods.ifca``
=====================================  =========================================================

Deviations: where the paper is silent, and one guard of ours:
- the rank q keeps eigenvalues above ``grouping.threshold`` of the largest, at least
  ``grouping.smallest_rank``, and all clients use the smallest count;
- l, l2 and tau_sim are calibrated on the server's clean images unless set (``core.calibration``);
- local classes below ``correction.min_class_size`` samples, or below l, go to Phase 2 (0 is the
  literal Procedure 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raysim.methods.method import METHODS, Method, Repair
from raysim.protocols import Stage
from raysim.settings import settings
from raysim.steps.correction import CorrectionSettings
from raysim.steps.grouping import GroupingSettings, group_by_similarity


@METHODS.register("fb_nll_minus")
@settings
class FbNllMinus(Method):
    """FB-NLL(-): the grouping of FB-NLL without label correction."""

    grouping: GroupingSettings = GroupingSettings()
    uses: ClassVar[tuple[str, ...]] = ("grouping",)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a grouping that does not fit the data, too."""
        self.grouping.check(config, dimensions["grouping"])
        Method.check(self, config, classes=classes, dimensions=dimensions)

    def grouping_stage(self, config: Any) -> Stage:
        """Return the one-shot grouping from features alone (Algorithm 1, lines 3-18)."""
        return Stage("group", 1, group_by_similarity(self.grouping))


@METHODS.register("fb_nll")
@settings
class FbNll(FbNllMinus):
    """FB-NLL (Ali and Arafa 2026): group by feature spectra, repair labels, train per group."""

    correction: CorrectionSettings = CorrectionSettings()
    uses: ClassVar[tuple[str, ...]] = ("grouping", "correction")

    @property
    def repair(self) -> Repair:
        """Labels are repaired between grouping and training (line 20)."""
        return Repair("train", self.correction)

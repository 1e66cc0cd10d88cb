"""Robust FL: small losses, shared class centroids, pseudo-labels (Yang et al. 2022).

Deviations from the released (unofficial) code, whose settings these are:
- the pull to the centroids has a gradient and is a mean over samples and features: the code
  detaches the features, so its sum moves nothing (``parity: code`` does the same); with a gradient
  that sum outweighs the cross-entropy, and features collapse;
- in the first round every client that has a class counts the same in its centroid, since cosines
  to the random start say nothing; later a negative cosine counts as 0, and a class without any
  agreement keeps its centroid (the code divides by a sum that may be 0);
- features are what enters the last layer (FedFixer's LeNet takes an earlier one, of 400).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from raysim.methods import METHODS
from raysim.methods.centralised import refuse_other_training
from raysim.methods.clustered import clustered_stages, one_group, share_of_rounds
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.centroids import CentroidStep, centroid_round
from raysim.steps.group_training import chosen_clients, evaluated


@METHODS.register("rfl")
@settings
class RobustFl:
    """Robust FL (Yang et al. 2022): class centroids are shared, labels corrected by the model."""

    forget_rate: float = 0.2
    """eps, the share of a batch that is left out in the end."""
    ramp_rounds: int = 10
    """Rounds over which that share grows from 0."""
    pseudo_rounds: int | None = None
    """T_pl, rounds before labels are corrected, in which the pull grows; null: a tenth of
    train.rounds (100 of 1000)."""
    pull: float = 1.0
    """lambda_cen, towards the centroid of the own class."""
    entropy: float = 0.8
    """lambda_e."""
    parity: Literal["paper", "code"] = "paper"
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        rate = self.forget_rate
        do = "try the share of wrong labels"
        check(0 <= rate < 1, "forget_rate", "must be in [0, 1)", got=rate, do=do)
        for name in ("ramp_rounds", "pseudo_rounds"):
            value = getattr(self, name)
            ok = value is None or value >= 0
            check(ok, name, "must not be negative", got=value, do="try 10")
        for name in ("pull", "entropy"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do="try 1.0 and 0.8")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse training that does not fit."""
        refuse_other_training(config, "Robust FL")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then training."""
        return clustered_stages(config, group=one_group, train=self._round)

    def step(self, round_id: int, config: Any) -> CentroidStep:
        """Return the local step of a round, counted from 0."""
        wait = share_of_rounds(config, self.pseudo_rounds, 10)
        grown = min(round_id / self.ramp_rounds, 1.0) if self.ramp_rounds else 1.0
        pulled = min(round_id / wait, 1.0) if wait else 1.0
        return CentroidStep(
            rate=self.forget_rate * grown,
            pull=self.pull * pulled,
            certainty=self.entropy,
            corrects=round_id >= wait,
            attached=self.parity == "paper",
        )

    def _round(self, context: Context, state: State) -> State:
        server = replace(context.config.server, weights="uniform")  # as the code
        step = self.step(context.round, context.config)
        chosen = chosen_clients(context)
        return evaluated(context, centroid_round(context, state, chosen, step=step, server=server))

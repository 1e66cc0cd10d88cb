"""Co-teaching in a federation: two networks select for each other (Han et al. 2018; FedRN 2022).

Both networks are sent, trained and averaged; network 1 is evaluated.
Deviations from the paper, as in FedRN's comparison: the rate of forgotten samples is the same in
every setting (the paper: the true noise rate) and grows with rounds, not epochs; the optimiser is
that of the train section. Deviation from Co-teaching's released code: its loss is divided by the
number of kept samples once more, ours is their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raysim.methods import METHODS
from raysim.methods.centralised import baseline_round, refuse_other_training
from raysim.methods.clustered import clustered_stages, one_group, share_of_rounds
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.peers import teach_task, with_peers


@METHODS.register("co_teaching")
@settings
class CoTeaching:
    """Co-teaching (Han et al. 2018): two networks keep small-loss samples for each other."""

    forget_rate: float = 0.2  # FedRN, for every noise
    """tau, the share of a batch that is left out in the end."""
    ramp_rounds: int | None = None
    """T_k, rounds over which the rate grows from 0; null: a fifth of train.rounds (100 of 500)."""
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        rate, ramp = self.forget_rate, self.ramp_rounds
        ok = 0 <= rate < 1
        check(ok, "forget_rate", "must be in [0, 1)", got=rate, do="try the share of wrong labels")
        ok = ramp is None or ramp >= 0
        check(ok, "ramp_rounds", "must not be negative, or null", got=ramp, do="try null")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse training that does not fit."""
        refuse_other_training(config, "Co-teaching")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then training."""
        return clustered_stages(config, group=one_group, train=self._round)

    def _round(self, context: Context, state: State) -> State:
        state = state if state.models else with_peers(context, state)
        ramp = share_of_rounds(context.config, self.ramp_rounds, 5)
        return baseline_round(teach_task, context, state, rate=self.rate(context.round, ramp))

    def rate(self, round_id: int, ramp: int) -> float:
        """Return eps_t = tau min(t / T_k, 1), rounds counted from 0."""
        return self.forget_rate * (min(round_id / ramp, 1.0) if ramp else 1.0)

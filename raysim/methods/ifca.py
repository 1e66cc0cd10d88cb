"""IFCA-PFL and IFCA: groups by training loss, revised every round.

IFCA-PFL is the baseline of RCC-PFL (Procedure 2) and FB-NLL (Procedures 2-4); IFCA is Ghosh et al.
(2020), model averaging variant.

Deviations from the papers:
- after 200 draws of initial models that leave a group empty, clients are dealt out in equal shares
  (the papers repeat without end);
- fresh models are compared by the statistics of the batch; where few take part, one that nobody has
  trained by round 1 is compared by its running statistics, which say little yet;
- RCC-PFL's fallback names no group sizes; FB-NLL's rule is used for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from raysim.core.association import natural_groups
from raysim.methods import METHODS
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.association import (
    check_groups,
    count_choices,
    count_losses,
    first_groups,
    group_models,
    joined,
    loss_matrix,
    reassociated,
)
from raysim.steps.evaluation import is_due
from raysim.steps.group_training import chosen_clients, count_uploads, evaluated, train_groups
from raysim.steps.server import group_model


@METHODS.register("ifca_pfl")
@settings
class IfcaPfl:
    """IFCA-PFL (Ali and Arafa): groups by loss after every round, none ever empty."""

    freeze_after: int | None = None  # RCC-PFL allows it without a number; off as in FB-NLL
    """Stop revising groups after this many rounds without a change."""
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        ok = self.freeze_after is None or self.freeze_after >= 1
        check(ok, "freeze_after", "must be at least 1, or null", got=self.freeze_after, do="try 5")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse more groups than clients."""
        check_groups(config)

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return Procedure 3, then rounds that end with Procedure 4."""
        count = config.data.partition.groups

        def start(context: Context, state: State) -> State:
            return first_groups(context, state, num_groups=count, count=count_losses)

        def train(context: Context, state: State) -> State:
            chosen = chosen_clients(context)
            count_uploads(context, state, chosen)
            state = train_groups(context, state, chosen, counted=False)
            return evaluated(context, self._revised(context, state, count))

        return (Stage("group", 1, start), Stage("train", config.train.rounds, train))

    def _revised(self, context: Context, state: State, count: int) -> State:
        quiet = state.values.get("quiet_rounds", 0)
        if self.freeze_after is not None and quiet >= self.freeze_after:
            context.observe_groups(state.groups)
            own = [state.models[group_model(g)].nbytes for g in state.groups.values()]
            context.sent("down", "model", sum(own))  # instead of all M models
            return state
        new = reassociated(context, state, num_groups=count)
        quiet = quiet + 1 if new.groups == state.groups else 0
        return replace(new, values={**new.values, "quiet_rounds": quiet})


@METHODS.register("ifca")
@settings
class Ifca:
    """IFCA (Ghosh et al. 2020): participants join their best model, then train it."""

    smallest_share: float = 0.1  # released code, p = 4; 0.35 for p = 2
    """Initial models are drawn again until each attracts this share of the clients."""
    lr_decay: float = 0.99  # released code
    """The learning rate shrinks by this factor every round."""
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        ok = 0 <= self.smallest_share < 1
        check(ok, "smallest_share", "must be in [0, 1)", got=self.smallest_share, do="try 0.1")
        check(0 < self.lr_decay <= 1, "lr_decay", "must be in (0, 1]", got=self.lr_decay)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse more groups than clients."""
        check_groups(config)

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return initial models that all attract clients, then rounds that begin with a choice."""
        count = config.data.partition.groups
        share = math.ceil(self.smallest_share * config.data.partition.clients)
        smallest = max(min(share, config.data.partition.clients // count), 1)

        def start(context: Context, state: State) -> State:
            return first_groups(
                context, state, num_groups=count, smallest=smallest, count=count_choices
            )

        def train(context: Context, state: State) -> State:
            local = config.train
            local = replace(local, lr=local.lr * self.lr_decay**context.round)
            chosen = chosen_clients(context)
            # Running statistics of untrained batch norm say nothing.
            state = _choose(context, state, chosen, count, fresh=context.round == 0)
            count_choices(context, group_models(state, count), chosen)
            count_uploads(context, state, chosen)
            state = train_groups(context, state, chosen, counted=False, train=local)
            if is_due(context):  # who did not take part is evaluated with its best model too
                state = _choose(context, state, list(context.federation.clients), count)
            return evaluated(context, state)

        return (Stage("group", 1, start), Stage("train", config.train.rounds, train))


def _choose(
    context: Context, state: State, clients: list[int], count: int, *, fresh: bool = False
) -> State:
    models = group_models(state, count)
    losses = loss_matrix(context, models, clients, batch_statistics=fresh)
    return joined(context, state, clients, natural_groups(losses))

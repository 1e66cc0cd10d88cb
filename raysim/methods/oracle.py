"""Oracle: FedAvg on the samples whose label is right, an upper bound of FedRN (Kim et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from raysim.methods import METHODS
from raysim.methods.centralised import refuse_other_training
from raysim.methods.clustered import clustered_stages, one_group
from raysim.protocols import Client, Context, Contribution, Stage, State, Tree
from raysim.settings import settings
from raysim.steps.group_training import chosen_clients, evaluated, train_groups_by
from raysim.steps.sessions import client_session, sent_model


@METHODS.register("oracle")
@settings
class Oracle:
    """Oracle (Kim et al. 2022): the wrong labels are known and left out (not a method to run)."""

    privileges: ClassVar[tuple[str, ...]] = ("clean",)
    uses: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse training that does not fit."""
        refuse_other_training(config, "Oracle")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then training."""
        return clustered_stages(config, group=one_group, train=self._round)

    def _round(self, context: Context, state: State) -> State:
        chosen = chosen_clients(context)
        clean = context.privilege("clean")
        state, _ = train_groups_by(
            train_clean_task,
            context,
            state,
            chosen,
            each={k: {"clean": clean[k]} for k in chosen},
            server=replace(context.config.server, weights="samples"),
        )
        return evaluated(context, state)


def train_clean_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after training on the clean samples; it counts by their number."""
    mask: np.ndarray = arguments["clean"]
    with client_session(client, memory, arguments) as own:
        own.descend(among=np.flatnonzero(mask))
        return memory, sent_model(own, arguments, weight=float(mask.sum()), selected=mask)

"""The yardsticks: one model for all, true groups, no collaboration, right labels only.

``single`` is FedAvg (McMahan et al. 2017, see raysim/docs/sheets/optimizers.md); ``optimum`` is
RCC-PFL's optimum clustering (Ali and Arafa 2025); ``local_only`` is ours; ``oracle`` is FedRN's
(Kim et al. 2022, section 5).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from raysim.methods.method import METHODS, Method, assign, other_training, true_groups
from raysim.models.sessions import Session
from raysim.protocols import Context, Contribution, Stage, State, Tree, Where
from raysim.settings import settings
from raysim.steps.group_training import chosen_clients, evaluated, train_alone
from raysim.steps.sessions import sent_model


@METHODS.register("single")
@settings
class Single(Method):
    """Single global model: FedAvg over all clients, evaluated per client on its own task."""


@METHODS.register("optimum")
@settings
class Optimum(Method):
    """Optimum clustering: the true tasks are given (an upper bound, not a method one could run)."""

    privileges: ClassVar[tuple[str, ...]] = ("tasks",)

    def grouping_stage(self, config: object) -> Stage:
        return Stage("group", 1, true_groups)


@METHODS.register("local_only")
@settings
class LocalOnly(Method):
    """Local only: every client trains its own model and nothing is shared."""

    def grouping_stage(self, config: object) -> Stage:
        return Stage("group", 1, _own_groups)

    def round(self, context: Context, state: State) -> State:
        return train_alone(context, state)


def _own_groups(context: Context, state: State) -> State:
    clients = context.federation.clients
    return assign(context, state, {k: i for i, k in enumerate(clients)})


@METHODS.register("oracle")
@settings
class Oracle(Method):
    """Oracle (Kim et al. 2022): the wrong labels are known and left out (not a method to run)."""

    title: ClassVar[str] = "Oracle"
    privileges: ClassVar[tuple[str, ...]] = ("clean",)
    refuses: ClassVar = (other_training,)
    counted_by: ClassVar = "samples"

    def round(self, context: Context, state: State) -> State:
        """Tell every participant which of its labels are right."""
        chosen, clean = chosen_clients(context), context.privilege("clean")
        each = {k: {"clean": clean[k]} for k in chosen}
        return evaluated(context, self.train_groups(context, state, chosen, each=each)[0])

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train on the clean samples; the model counts by their number."""
        mask: np.ndarray = session.sent["clean"]
        session.descend(among=np.flatnonzero(mask))
        return memory, sent_model(session, weight=float(mask.sum()), selected=mask)

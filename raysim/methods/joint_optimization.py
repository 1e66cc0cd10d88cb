"""Joint Optimisation in a federation: soft labels follow predictions (Tanaka et al. 2018; FedRN).

Deviations from the paper, as in FedRN's comparison: labels are the mean of the last 15 predictions
(the paper: 10), warm-up is counted in rounds, no second training with the final labels follows.
Deviation from FedRN's released code: a mean over fewer than 15 predictions divides by their number
(``parity: code`` divides by 15, so that young labels sum to less than one).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from raysim.methods import METHODS
from raysim.methods.centralised import Centralised, baseline_round
from raysim.protocols import Client, Context, Contribution, State, Tree
from raysim.settings import check, settings
from raysim.steps.histories import JointStep, train_jointly
from raysim.steps.sessions import client_session, sent_model

HISTORY, TARGETS = "joint/history", "joint/targets"


@METHODS.register("joint_optimization")
@settings
class JointOptimization(Centralised):
    """Joint Optimisation (Tanaka et al. 2018): labels are replaced by past predictions."""

    history: int = 15  # FedRN; 10 in the paper
    """Q, predictions per sample that are averaged; a client keeps N Q C numbers."""
    prior_weight: float = 1.2
    """a, of the mean prediction's distance from the prior."""
    entropy_weight: float = 0.8
    """b, of the predictions' entropy."""
    prior: Literal["uniform", "client"] = "uniform"
    """client: the shares of its labels, since a uniform prior is wrong for clients of few classes
    (ours)."""
    parity: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        Centralised.__post_init__(self)
        check(self.history >= 1, "history", "must be at least 1", got=self.history, do="try 15")
        for name in ("prior_weight", "entropy_weight"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do="try 1.2 and 0.8")

    def _warm(self, context: Context, state: State) -> State:
        return self._round(context, state, update=False)

    def _train(self, context: Context, state: State) -> State:
        return self._round(context, state, update=True)

    def _round(self, context: Context, state: State, *, update: bool) -> State:
        step = JointStep(
            prior=self.prior_weight,
            entropy=self.entropy_weight,
            own_prior=self.prior == "client",
            by_length=self.parity == "code",
        )
        local = {"step": step, "update": update, "history": self.history}
        return baseline_round(joint_task, context, state, **local)


def joint_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after training on soft labels; keep those and the predictions.

    A label counts as judged clean while its class is still the most probable one.
    """
    with client_session(client, memory, arguments) as own:
        shape = (len(own.labels), arguments["history"], own.classes)
        history = memory.get(HISTORY, np.zeros(shape, np.float32))
        targets = memory.get(TARGETS, np.eye(own.classes, dtype=np.float32)[own.labels])
        update = arguments["update"]
        history, targets = train_jointly(own, arguments["step"], history, targets, update=update)
        memory = {**memory, HISTORY: history}
        if not update:
            return memory, sent_model(own)
        kept = targets.argmax(axis=1) == own.labels
        return {**memory, TARGETS: targets}, sent_model(own, selected=kept)

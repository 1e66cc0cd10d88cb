"""SELFIE in a federation: repair labels whose predictions agree (Song et al. 2019; FedRN 2022).

Deviations from the paper, as in FedRN's comparison: the noise rate is the same in every setting
(the paper: known, estimated again at each of three restarts), there are no restarts, warm-up is
counted in rounds, predictions join the history before samples are selected.
Deviation from both released codes: a sample with fewer than ``history`` predictions is not repaired
(``parity: code`` starts with a history of class 0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from raysim.core.selection import EMPTY
from raysim.methods import METHODS
from raysim.methods.centralised import Centralised, baseline_round
from raysim.protocols import Client, Context, Contribution, State, Tree
from raysim.settings import check, settings
from raysim.steps.histories import Refurbished, SelfieStep, train_refurbished
from raysim.steps.sessions import client_session, sent_model

HISTORY, LABELS = "selfie/history", "selfie/labels"


@METHODS.register("selfie")
@settings
class Selfie(Centralised):
    """SELFIE (Song et al. 2019): small-loss samples, and labels that past predictions agree on."""

    noise_rate: float = 0.2  # FedRN, for every noise
    """tau, the share of a batch that is not taken for clean."""
    history: int = 15
    """q, predictions per sample."""
    uncertainty: float = 0.05
    """eps: a label is repaired if the entropy of its predictions over log C is at most this; with
    15 predictions of 10 classes they must all agree."""
    parity: Literal["paper", "code"] = "paper"

    def __post_init__(self) -> None:
        Centralised.__post_init__(self)
        ok = 0 <= self.noise_rate < 1
        do = "try the share of wrong labels"
        check(ok, "noise_rate", "must be in [0, 1)", got=self.noise_rate, do=do)
        check(self.history >= 1, "history", "must be at least 1", got=self.history, do="try 15")
        ok = 0 <= self.uncertainty <= 1
        check(ok, "uncertainty", "must be in [0, 1]", got=self.uncertainty, do="try 0.05")

    def _warm(self, context: Context, state: State) -> State:
        return self._round(context, state, select=False)

    def _train(self, context: Context, state: State) -> State:
        return self._round(context, state, select=True)

    def _round(self, context: Context, state: State, *, select: bool) -> State:
        step = SelfieStep(noise_rate=self.noise_rate, uncertainty=self.uncertainty)
        first = 0 if self.parity == "code" else EMPTY
        local = {"step": step, "select": select, "history": self.history, "first": first}
        return baseline_round(selfie_task, context, state, **local)


def selfie_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model; keep the predictions and the repaired labels."""
    select = arguments["select"]
    with client_session(client, memory, arguments) as own:
        count = len(own.labels)
        unseen = np.full((count, arguments["history"]), arguments["first"], dtype=np.int16)
        known = Refurbished(
            memory.get(HISTORY, unseen), memory.get(LABELS, np.full(count, EMPTY, dtype=np.int64))
        )
        known, clean = train_refurbished(own, arguments["step"], known, select=select)
        memory = {**memory, HISTORY: known.history, LABELS: known.labels}
        return memory, sent_model(own, selected=clean if select else None)

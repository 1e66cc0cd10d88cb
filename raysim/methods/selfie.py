"""SELFIE in a federation: repair labels whose predictions agree (Song et al. 2019; FedRN 2022).

Formulas: raysim/docs/sheets/selfie.md. N samples, Q past predictions, C classes.

Deviations from the paper, as in FedRN's comparison: the noise rate is the same in every setting
(the paper: known, estimated again at each of three restarts), there are no restarts, warm-up is
counted in rounds, predictions join the history before samples are selected.
Deviation from both released codes: a sample with fewer than ``history`` predictions is not repaired
(``parity: code`` starts with a history of class 0).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import numpy as np

from raysim.core.selection import ROUNDING, appended, smallest
from raysim.methods.method import METHODS, WarmedUp, other_training
from raysim.models.sessions import Session, gradients
from raysim.models.training import local_optimizer
from raysim.protocols import Contribution, Tree, Where
from raysim.settings import In, settings
from raysim.steps.sessions import sent_model

EMPTY = -1
"""In a history of labels: no prediction yet."""
HISTORY, LABELS = "selfie/history", "selfie/labels"
"""In a client's memory: predicted labels (N, Q), oldest first; repaired labels (N,), or EMPTY."""


@METHODS.register("selfie")
@settings
class Selfie(WarmedUp):
    """SELFIE (Song et al. 2019): small-loss samples, and labels that past predictions agree on."""

    noise_rate: Annotated[float, In("[0, 1)", do="try the share of wrong labels")] = 0.2
    """tau, the share of a batch that is not taken for clean; FedRN has 0.2 for every noise."""
    history: Annotated[int, In("[1, inf)", do="try 15")] = 15
    """q, predictions per sample."""
    uncertainty: Annotated[float, In("[0, 1]", do="try 0.05")] = 0.05
    """eps: a label is repaired if the entropy of its predictions over log C is at most this; with
    15 predictions of 10 classes they must all agree."""
    parity: Literal["paper", "code"] = "paper"
    title: ClassVar = "SELFIE"
    refuses: ClassVar = (other_training,)
    stateless: ClassVar[bool] = False

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train, after the warm-up on the clean set and refurbished labels only."""
        import torch
        from torch.nn.functional import cross_entropy

        count, doubted = len(session.labels), where.stage == "train"
        first = 0 if self.parity == "code" else EMPTY
        unseen = np.full((count, self.history), first, dtype=np.int16)
        history = np.array(memory.get(HISTORY, unseen))
        repaired = np.array(memory.get(LABELS, np.full(count, EMPTY, dtype=np.int64)))
        clean = np.ones(count, dtype=bool)
        update, network = local_optimizer(session.weights(), session.train), session.networks[0]
        for epoch, batch in session.batches():
            logits, rows = network(batch.images), batch.index
            predicted = logits.detach().argmax(dim=1).cpu().numpy()
            history[rows] = appended(history[rows], predicted)
            loss = cross_entropy(logits, batch.labels)
            if doubted:
                losses = cross_entropy(logits.detach(), batch.labels, reduction="none")
                clean_count = math.ceil((1.0 - self.noise_rate) * len(rows) - ROUNDING)
                clean[rows] = smallest(losses.cpu().numpy(), clean_count)
                # A label is repaired where past predictions agree, else it stays as it was.
                sure = label_uncertainty(history[rows], session.classes) <= self.uncertainty
                agreed = majority(history[rows], session.classes)
                repaired[rows] = np.where(sure, agreed, repaired[rows])
                # The loss over clean and repaired samples; a repaired label goes before the given.
                is_repaired = repaired[rows] != EMPTY
                wanted = np.where(is_repaired, repaired[rows], session.labels[rows])
                kept = clean[rows] | is_repaired
                target = torch.tensor(wanted[kept], dtype=torch.int64, device=session.device)
                loss = cross_entropy(network(batch.images[kept]), target)
            update(gradients(loss, session.weights()))
            session.note(epoch, len(rows), loss)
        memory = {**memory, HISTORY: history, LABELS: repaired}
        return memory, sent_model(session, selected=clean if doubted else None)


# ---- SELFIE's mathematics ----------------------------------------------------------------------


def label_uncertainty(history: np.ndarray, classes: int) -> np.ndarray:
    """Return F (N,), SELFIE's predictive uncertainty: entropy of past labels (N, Q) over log C.

    Infinite where fewer than Q predictions were made.
    """
    shares = _label_counts(history, classes) / history.shape[1]
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy = -(shares * logs).sum(axis=1) / max(math.log(classes), ROUNDING)
    return np.where((history == EMPTY).any(axis=1), np.inf, np.maximum(entropy, 0.0))


def majority(history: np.ndarray, classes: int) -> np.ndarray:
    """Return the most frequent past label (N,), SELFIE's refurbished one; of several the first."""
    counts = _label_counts(history, classes)
    often = np.take_along_axis(counts, np.maximum(history, 0), axis=1) * (history != EMPTY)
    first = often.argmax(axis=1)
    labels: np.ndarray = history[np.arange(len(history)), first]
    return labels


def _label_counts(history: np.ndarray, classes: int) -> np.ndarray:
    counts: np.ndarray = (history[:, :, None] == np.arange(classes)).sum(axis=1)
    return counts

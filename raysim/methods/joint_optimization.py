"""Joint Optimisation in a federation: soft labels follow predictions (Tanaka et al. 2018; FedRN).

Formulas: raysim/docs/sheets/joint_optimization.md. N samples, Q past predictions, C classes.

Deviations from the paper, as in FedRN's comparison: labels are the mean of the last 15 predictions
(the paper: 10), warm-up is counted in rounds, no second training with the final labels follows.
Deviation from FedRN's released code: a mean over fewer than 15 predictions divides by their number
(``parity: code`` divides by 15, so that labels with a short history sum to less than one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from raysim.core.selection import appended
from raysim.methods.method import METHODS, WarmedUp, other_training
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import prediction_entropy, prior_divergence, soft_cross_entropy
from raysim.models.training import local_optimizer
from raysim.protocols import Contribution, Tree, Where
from raysim.settings import In, settings
from raysim.steps.sessions import sent_model

if TYPE_CHECKING:
    import torch

HISTORY, TARGETS = "joint/history", "joint/targets"
"""In a client's memory: past predictions (N, Q, C), oldest first; soft labels (N, C)."""


@METHODS.register("joint_optimization")
@settings
class JointOptimization(WarmedUp):
    """Joint Optimisation (Tanaka et al. 2018): labels are replaced by past predictions."""

    history: Annotated[int, In("[1, inf)", do="try 15")] = 15  # FedRN; 10 in the paper
    """Q, predictions per sample that are averaged; a client keeps N Q C numbers."""
    prior_weight: Annotated[float, In("[0, inf)", do="try 1.2")] = 1.2
    """a, of the mean prediction's distance from the prior."""
    entropy_weight: Annotated[float, In("[0, inf)", do="try 0.8")] = 0.8
    """b, of the predictions' entropy."""
    prior: Literal["uniform", "client"] = "uniform"
    """client: the shares of its labels, since a uniform prior is wrong for clients of few classes
    (ours)."""
    parity: Literal["paper", "code"] = "paper"
    title: ClassVar = "Joint Optimisation"
    refuses: ClassVar = (other_training,)
    stateless: ClassVar[bool] = False

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train on soft labels; after the warm-up every epoch ends with new ones.

        A label counts as judged clean while its class is still the most probable one.
        """
        import torch

        count, classes, replaces = len(session.labels), session.classes, where.stage == "train"
        unseen = np.zeros((count, self.history, classes), np.float32)
        history = np.array(memory.get(HISTORY, unseen))
        targets = memory.get(TARGETS, np.eye(classes, dtype=np.float32)[session.labels])
        prior = session.label_shares() if self.prior == "client" and count else None
        update, network = local_optimizer(session.weights(), session.train), session.networks[0]
        before = 0
        for epoch, batch in session.batches():
            if replaces and epoch != before:
                before, targets = epoch, self.replaced(history)
            wanted = torch.tensor(targets[batch.index], dtype=torch.float32, device=session.device)
            logits = network(batch.images)
            loss = self.loss(logits, wanted, prior)
            update(gradients(loss, session.weights()))
            session.note(epoch, len(batch.index), loss)
            predicted = logits.detach().softmax(dim=1).cpu().numpy()
            history[batch.index] = appended(history[batch.index], predicted)
        memory = {**memory, HISTORY: history}
        if not replaces:
            return memory, sent_model(session)
        targets = self.replaced(history)
        kept = targets.argmax(axis=1) == session.labels
        return {**memory, TARGETS: targets}, sent_model(session, selected=kept)

    def loss(
        self, logits: torch.Tensor, targets: torch.Tensor, prior: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return L_c + a L_p + b L_e (the loss); no ``prior``: uniform."""
        return (
            soft_cross_entropy(logits, targets)
            + self.prior_weight * prior_divergence(logits, prior)
            + self.entropy_weight * prediction_entropy(logits)
        )

    def replaced(self, history: np.ndarray) -> np.ndarray:
        """Return the soft labels (N, C), the mean of the past predictions (label update)."""
        means = history.mean(axis=1) if self.parity == "code" else mean_prediction(history)
        return means.astype(np.float32)


def mean_prediction(history: np.ndarray) -> np.ndarray:
    """Return the mean (N, C) of the predictions in a history (N, Q, C); 0 where there is none."""
    total = history.sum(axis=1, dtype=np.float64)
    filled = (history.sum(axis=2) > 0).sum(axis=1)  # a prediction sums to one
    means: np.ndarray = total / np.maximum(filled, 1)[:, None]
    return means

"""FedFixer: a global and a personal model pick clean samples for each other (Ji et al. 2024).

Equations and Algorithm 1 are FedFixer's; the loss (``confident_loss``) and the sieve (Eq. 3-6) are
CORES2's, in cores2.py. w is the global model (network 0), theta the personal one (network 1).

Deviations from the paper, each as in the authors' released code, which gives the printed numbers
(``parity: paper`` is the printed algorithm; raysim/docs/sheets/fedfixer.md):
- beta grows from 0 over the first rounds, and every step is divided by 1 + beta;
- the personal model makes five steps per batch, with a weight decay of 0.001;
- the global model's own step uses the personal learning rate and the gradient that was computed
  before the pull towards the personal model;
- the prior of the confidence regulariser is uniform;
- batch norm of the global model counts every batch once per inner step: its running statistics are
  moved that often, although the network runs once.
A round in which nobody selects a sample keeps the model (the code would divide by zero).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from raysim.methods.cores2 import (
    beta_at,
    confident_loss,
    everything,
    mean_of,
    move,
    sieve_step,
    sieved_by,
)
from raysim.methods.method import METHODS, Method, other_steps, other_training
from raysim.models.sessions import Session, gradients
from raysim.models.training import Batch
from raysim.protocols import Context, Contribution, State, Tree, Where
from raysim.settings import In, settings
from raysim.steps.group_training import evaluated
from raysim.steps.sessions import sent_model

if TYPE_CHECKING:
    import torch

    from raysim.methods.cores2 import Losses, Tensors

DECAY = 0.001
"""Weight decay of the personal model (released code)."""


@METHODS.register("fedfixer")
@settings
class FedFixer(Method):
    """FedFixer (Ji et al. 2024): two models per client select clean samples for each other."""

    warmup: Annotated[int, In("[0, inf)", do="try 10")] = 10
    """T_s: selection starts after this round, counted from 0."""
    distance: Annotated[float, In("[0, inf)", do="try 15")] = 15.0
    """lambda, the pull between the two models."""
    confidence: Annotated[float, In("[0, inf)", do="try 2")] = 2.0
    """Largest beta; 2 is meant for hundreds of rounds, try 0.5 for short runs."""
    personal_lr: Annotated[float, In("(0, inf)", do="1.0 is train.lr")] = 1.0  # CIFAR-10
    """zeta as a multiple of train.lr; 0.5 for MNIST."""
    inner_steps: Annotated[int, In("[1, inf)", do="try 5")] = 5  # released code
    """Steps of the personal model per batch."""
    without: Literal["nothing", "distance", "confidence", "alternation", "personal"] = "nothing"
    """Ablations: no pull (the personal model is kept), plain cross-entropy, every model on its own
    selection, or no personal model."""
    parity: Literal["code", "paper"] = "code"
    title: ClassVar = "FedFixer"
    refuses: ClassVar = (other_training, other_steps)
    counted_by: ClassVar = "samples"

    @property
    def stateless(self) -> bool:  # type: ignore[override]
        """Only without the pull a client keeps its personal model."""
        return self.without != "distance"

    def round(self, context: Context, state: State) -> State:
        """Average by the selected samples (Eq. 1, line 9); keep the model if there are none."""
        trained, replies = self.train_groups(context, state)
        if state.models and not sum(reply["kept"] for reply in replies.values()):
            trained = replace(trained, models=state.models)
        return evaluated(context, trained)

    def networks(self, received: Tree, memory: Tree, sent: Mapping[str, Any]) -> Sequence[Tree]:
        """Return w and theta, which starts as a copy of w (line 14) where it was not kept."""
        return [
            received,
            {part: memory.get(f"personal/{part}", received[part]) for part in received},
        ]

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """ClientUpdate (Algorithm 1, lines 12-30).

        The model counts by n_k bar, the mean over epochs of the number of samples that trained w.
        """
        printed, dual = self.parity == "paper", self.without != "personal"
        judges = where.round > self.warmup  # lines 17-22
        prior = session.label_shares() if printed and len(session.labels) else None
        total, last = 0, np.zeros(len(session.labels), dtype=bool)
        with session.statistics(0, times=self._inner_steps if dual else 1):
            for epoch, batch in session.batches():
                beta = self.beta(session, where, epoch)
                eta = session.train.lr if printed else session.train.lr / (1.0 + beta)
                regularised = 0.0 if self.without == "confidence" else beta
                losses = partial(confident_loss, labels=batch.labels, beta=regularised, prior=prior)
                if dual:
                    loss, chosen = self._dual_step(session, batch, losses, eta=eta, judges=judges)
                else:
                    size = eta if printed else self.personal_lr * eta
                    loss, chosen = sieve_step(
                        session, batch, losses, size=size, judges=judges, strict=printed
                    )
                mask = chosen.cpu().numpy()
                total, last[batch.index] = total + int(mask.sum()), mask
                session.note(epoch, len(mask), loss)
        if not self.stateless:
            kept = {f"personal/{part}": array for part, array in session.tree(1).items()}
            memory = {**memory, **kept}
        count = total / session.train.epochs  # line 29
        selected = last if judges else None
        return memory, sent_model(session, weight=count, kept=count, selected=selected)

    def beta(self, session: Session, where: Where, epoch: int) -> float:
        """Return the strength of the confidence regulariser (Eq. 4); constant in the paper."""
        if self.parity == "paper":
            return self.confidence
        return beta_at(session, where, epoch, warmup=self.warmup, largest=self.confidence)

    @property
    def _inner_steps(self) -> int:
        return 1 if self.parity == "paper" else self.inner_steps

    def _dual_step(
        self, session: Session, batch: Batch, losses: Losses, *, eta: float, judges: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Move theta, then w; return the loss of w and the samples that trained it."""
        printed, alternate = self.parity == "paper", self.without != "alternation"
        pull = 0.0 if self.without == "distance" else self.distance
        zeta = self.personal_lr * eta
        w, theta = session.weights(0), session.weights(1)

        def select(outputs: torch.Tensor) -> torch.Tensor:
            return sieved_by(outputs, batch, strict=printed) if judges else everything(batch)

        outputs = session.networks[0](batch.images)
        by_w = select(outputs)  # line 20
        for _ in range(self._inner_steps):
            by_theta_outputs = session.networks[1](batch.images)
            by_theta = select(by_theta_outputs)  # line 21
            loss = mean_of(losses(by_theta_outputs), by_w if alternate else by_theta)
            slope = gradients(loss, theta)
            decay = 0.0 if printed else DECAY
            move(theta, _pulled(slope, theta, w, pull, decay), zeta)  # Eq. 8, line 23
        chosen = by_theta if alternate else by_w
        if printed:
            move(w, _gap(w, theta), eta * pull)  # Eq. 9, line 24
            loss = mean_of(losses(session.networks[0](batch.images)), chosen)
            move(w, gradients(loss, w), eta)  # line 25, the alternate update
            return loss, chosen
        loss = mean_of(losses(outputs), chosen)
        slope = gradients(loss, w)  # before the pull, as the released code has it
        move(w, _gap(w, theta), eta * pull)
        move(w, slope, zeta)
        return loss, chosen


def _pulled(slope: Tensors, own: Tensors, other: Tensors, pull: float, decay: float) -> Tensors:
    """Return the gradient with that of the distance regulariser (Eq. 7) and of the decay."""
    import torch

    with torch.no_grad():
        pulled = torch._foreach_add(slope, _gap(own, other), alpha=pull)
        return list(torch._foreach_add(pulled, own, alpha=decay))


def _gap(first: Tensors, second: Tensors) -> Tensors:
    import torch

    with torch.no_grad():
        return list(torch._foreach_sub(first, second))

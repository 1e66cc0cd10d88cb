"""CORES2 in a federation: two baselines of FedFixer (Cheng et al. 2021; Ji et al. 2024).

A network is trained with a confidence regulariser, and its sieve drops samples whose label is less
likely than labels are on average. ``cores2_global`` sieves with the model of the federation,
``cores2_local`` with a private one. Equations are FedFixer's; raysim/docs/sheets/cores2.md.

Deviations from Cheng et al., as in FedFixer's released code: the prior is uniform, beta grows over
the first rounds and divides every step by 1 + beta, the network that sieves has a learning rate of
its own, no consistency training follows. Private networks start from the first global model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from raysim.core.selection import LOG_FLOOR
from raysim.methods.method import METHODS, Method, other_steps, other_training
from raysim.models.sessions import Session, gradients
from raysim.models.training import Batch
from raysim.protocols import Context, Contribution, State, Tree, Where
from raysim.settings import In, settings
from raysim.steps.group_training import evaluated, with_initial
from raysim.steps.server import group_model
from raysim.steps.sessions import sent_model

if TYPE_CHECKING:
    import torch

    Losses = Callable[[torch.Tensor], torch.Tensor]
    Tensors = list[torch.Tensor]

START = "start/0"
"""Name of the stored first model."""


@METHODS.register("cores2_global")
@settings
class GlobalCores2(Method):
    """Global+CORES2 (Cheng et al. 2021): the global model sieves its own samples."""

    warmup: Annotated[int, In("[0, inf)", do="try 10")] = 10
    """T_s: selection starts after this round, counted from 0."""
    confidence: Annotated[float, In("[0, inf)", do="try 2")] = 2.0
    """Largest beta."""
    personal_lr: Annotated[float, In("(0, inf)", do="1.0 is train.lr")] = 1.0  # CIFAR-10
    """Learning rate of the network that sieves, as a multiple of train.lr; 0.5 for MNIST."""
    title: ClassVar = "CORES2"
    refuses: ClassVar = (other_training, other_steps)
    counted_by: ClassVar = "samples"

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train on the samples that the received model takes for clean."""
        judges = where.round > self.warmup
        last = np.zeros(len(session.labels), dtype=bool)
        for epoch, batch in session.batches():
            beta = beta_at(session, where, epoch, warmup=self.warmup, largest=self.confidence)
            losses = partial(confident_loss, labels=batch.labels, beta=beta)
            size = self.personal_lr * session.train.lr / (1.0 + beta)
            loss, chosen = sieve_step(session, batch, losses, size=size, judges=judges)
            last[batch.index] = chosen.cpu().numpy()
            session.note(epoch, len(batch.index), loss)
        return memory, sent_model(session, selected=last if judges else None)


@METHODS.register("cores2_local")
@settings
class LocalCores2(GlobalCores2):
    """Local+CORES2 (Cheng et al. 2021): a private model sieves for the global one."""

    stateless: ClassVar[bool] = False

    def round(self, context: Context, state: State) -> State:
        if START not in state.models:
            first = with_initial(context, replace(state, models={})).models[group_model(0)]
            state = replace(state, models={START: first, group_model(0): first, **state.models})
        start = state.models[START]  # no message: clients draw it themselves, by the common seed
        return evaluated(context, self.train_groups(context, state, start=start)[0])

    def networks(self, received: Tree, memory: Tree, sent: Mapping[str, Any]) -> Sequence[Tree]:
        """Return the global model and the private one."""
        start = sent["start"]
        return [received, {part: memory.get(f"private/{part}", start[part]) for part in received}]

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train the private model by CORES2, the global one by cross-entropy on its selection."""
        from torch.nn.functional import cross_entropy

        judges = where.round > self.warmup
        last = np.zeros(len(session.labels), dtype=bool)
        for epoch, batch in session.batches():
            beta = beta_at(session, where, epoch, warmup=self.warmup, largest=self.confidence)
            outputs = session.networks[1](batch.images)
            chosen = sieved_by(outputs, batch) if judges else everything(batch)
            private = mean_of(confident_loss(outputs, batch.labels, beta), chosen)
            size = self.personal_lr * session.train.lr / (1.0 + beta)
            move(session.weights(1), gradients(private, session.weights(1)), size)
            losses = cross_entropy(
                session.networks[0](batch.images), batch.labels, reduction="none"
            )
            loss = mean_of(losses, chosen)
            move(session.weights(0), gradients(loss, session.weights(0)), session.train.lr)
            last[batch.index] = chosen.cpu().numpy()
            session.note(epoch, len(batch.index), loss)
        kept = {f"private/{part}": array for part, array in session.tree(1).items()}
        return {**memory, **kept}, sent_model(session, selected=last if judges else None)


def sieve_step(
    session: Session,
    batch: Batch,
    losses: Losses,
    *,
    size: float,
    judges: bool,
    strict: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move network 0 by the samples it selects itself; return its loss and those samples."""
    outputs = session.networks[0](batch.images)
    chosen = sieved_by(outputs, batch, strict=strict) if judges else everything(batch)
    loss = mean_of(losses(outputs), chosen)
    move(session.weights(0), gradients(loss, session.weights(0)), size)
    return loss, chosen


# ---- mathematics: N samples, C classes ---------------------------------------------------------


def confident_loss(
    logits: torch.Tensor, labels: torch.Tensor, beta: float, prior: torch.Tensor | None = None
) -> torch.Tensor:
    """Return CE(f(x), y) - beta sum_c pi_c CE(f(x), c) per sample (Eq. 4-6); no ``prior``: uniform.

    Only the second term has a floor, as in the released code: with one, the first would lose its
    gradient for a label that the network is sure is wrong.
    """
    import torch
    from torch.nn.functional import cross_entropy

    by_class = -(torch.softmax(logits, dim=1) + LOG_FLOOR).log()  # CE(f(x), c), (N, C)
    expected = by_class.mean(dim=1) if prior is None else by_class @ prior
    return cross_entropy(logits, labels, reduction="none") - beta * expected


def sieve(logits: torch.Tensor, labels: torch.Tensor, *, strict: bool = False) -> torch.Tensor:
    """Return which samples are taken for clean: CE(f(x), y) <= mean_c CE(f(x), c) (Eq. 3).

    ``strict``: below it, as the paper prints it; the released code has <=.
    """
    excess = confident_loss(logits, labels, 1.0)
    return excess < 0 if strict else excess <= 0


def sieved_by(outputs: torch.Tensor, batch: Batch, *, strict: bool = False) -> torch.Tensor:
    """Return which samples of a batch a network with these outputs takes for clean."""
    return sieve(outputs.detach(), batch.labels, strict=strict)


def everything(batch: Batch) -> torch.Tensor:
    """Return a mask of all samples of a batch: labels are not doubted yet."""
    import torch

    return torch.ones_like(batch.labels, dtype=torch.bool)


def beta_at(session: Session, where: Where, epoch: int, *, warmup: int, largest: float) -> float:
    """Return beta at an epoch of a round (the released code's schedule)."""
    epochs = session.train.epochs
    counted = where.round * epochs + epoch
    return confidence_strength(counted, epochs=epochs, warmup=warmup, largest=largest)


def confidence_strength(epoch: int, *, epochs: int, warmup: int, largest: float) -> float:
    """Return beta at an epoch counted over rounds (the released code's schedule).

    0 for E floor(T_s / 5) epochs, then E T_s epochs from 0 up to ``largest``, then that.
    """
    silent, ramp = epochs * (warmup // 5), epochs * warmup
    step = epoch - silent
    if step < 0 or largest == 0:
        return 0.0
    return largest if step >= ramp - 1 else largest * step / (ramp - 1)


def mean_of(losses: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the mean over the chosen samples; of no sample it is 0 and has no gradient."""
    return losses[chosen].mean() if bool(chosen.any()) else losses.sum() * 0.0


def move(weights: Tensors, directions: Tensors, size: float) -> None:
    """Take a step of ``size`` against ``directions``."""
    import torch

    with torch.no_grad():
        torch._foreach_add_(weights, directions, alpha=-size)

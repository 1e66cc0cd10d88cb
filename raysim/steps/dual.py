"""Local training of a global and a personal model that select for each other (FedFixer)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from raysim.models.losses import confidence_strength, confident_loss, mean_of, sieve
from raysim.models.sessions import Session, gradients
from raysim.models.training import Batch

if TYPE_CHECKING:
    import torch

    Losses = Callable[[torch.Tensor], torch.Tensor]
    Tensors = list[torch.Tensor]

DECAY = 0.001
"""Weight decay of the personal model (released code)."""


@dataclass(frozen=True, kw_only=True)
class DualStep:
    """One client's part of FedFixer, sheet section "Client round"."""

    warmup: int
    confidence: float
    """Largest beta."""
    plain_loss: bool = False
    """Cross-entropy alone; the schedule of the steps stays."""
    distance: float = 0.0
    """lambda."""
    personal_lr: float = 1.0
    """zeta as a multiple of train.lr; also of w's own step where w selects (released code)."""
    inner_steps: int = 1
    alternate: bool = True
    """Each model selects for the other one."""
    is_dual: bool = True
    keeps_personal: bool = False
    """The personal model goes on from its last round."""
    literal: bool = False
    """The printed algorithm: beta constant, no division by 1 + beta, the client's own label shares
    as prior, strict selection, gradient after the pull, eta for the global model, no decay."""

    def selects(self, round_id: int) -> bool:
        """Return whether labels are doubted in this round; before that all samples count."""
        return round_id > self.warmup

    def strength(self, epoch: int, epochs: int) -> float:
        """Return beta."""
        if self.literal:
            return self.confidence
        return confidence_strength(
            epoch, epochs=epochs, warmup=self.warmup, largest=self.confidence
        )


def train_dual(own: Session, step: DualStep, *, round_id: int) -> tuple[float, np.ndarray | None]:
    """Train network 0 (global, w) and network 1 (personal, theta).

    Return the mean over epochs of the number of samples that trained w, and which did in the last;
    None while labels are not doubted.
    """
    total, last = 0, np.zeros(len(own.labels), dtype=bool)
    prior = label_shares(own) if step.literal and len(own.labels) else None
    take = _dual_step if step.is_dual else _single_step
    for epoch, batch in own.batches():
        beta = step.strength(round_id * own.train.epochs + epoch, own.train.epochs)
        lr = own.train.lr if step.literal else own.train.lr / (1.0 + beta)
        strength = 0.0 if step.plain_loss else beta
        losses = partial(confident_loss, labels=batch.labels, strength=strength, prior=prior)
        fit, chosen = take(own, step, batch, losses, lr=lr, selects=step.selects(round_id))
        mask = chosen.cpu().numpy()
        total, last[batch.index] = total + int(mask.sum()), mask
        own.note(epoch, len(mask), fit)
    return total / own.train.epochs, last if step.selects(round_id) else None


def train_sifted(own: Session, step: DualStep, *, round_id: int) -> np.ndarray | None:
    """Train network 1 (private) by CORES2, network 0 by cross-entropy on what it selects.

    Return which samples those were in the last epoch; None while labels are not doubted.
    """
    from torch.nn.functional import cross_entropy

    last = np.zeros(len(own.labels), dtype=bool)
    for epoch, batch in own.batches():
        beta = step.strength(round_id * own.train.epochs + epoch, own.train.epochs)
        found = own.networks[1](batch.images)
        chosen = _selected(found, batch, step.selects(round_id), step.literal)
        private = mean_of(confident_loss(found, batch.labels, beta), chosen)
        small = step.personal_lr * own.train.lr / (1.0 + beta)
        _move(own.weights(1), gradients(private, own.weights(1)), small)
        losses = cross_entropy(own.networks[0](batch.images), batch.labels, reduction="none")
        fit = mean_of(losses, chosen)
        _move(own.weights(0), gradients(fit, own.weights(0)), own.train.lr)
        last[batch.index] = chosen.cpu().numpy()
        own.note(epoch, len(batch.index), fit)
    return last if step.selects(round_id) else None


def label_shares(own: Session) -> torch.Tensor:
    """Return pi, how often each label occurs at the client (C,)."""
    import torch

    counts = np.bincount(own.labels, minlength=own.classes) / len(own.labels)
    return torch.tensor(counts, dtype=torch.float32, device=own.device)


def _dual_step(
    own: Session, step: DualStep, batch: Batch, losses: Losses, *, lr: float, selects: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move theta, then w; return the loss of w and the samples that trained it."""
    shared, personal = own.weights(0), own.weights(1)
    outputs = own.networks[0](batch.images)
    by_shared = _selected(outputs, batch, selects, step.literal)  # b_w
    small = step.personal_lr * lr  # zeta'
    for _ in range(step.inner_steps):
        found = own.networks[1](batch.images)
        by_personal = _selected(found, batch, selects, step.literal)  # b_theta
        fit = mean_of(losses(found), by_shared if step.alternate else by_personal)
        moves = gradients(fit, personal)
        decay = 0.0 if step.literal else DECAY
        _move(personal, _pulled(moves, personal, shared, step.distance, decay), small)
    chosen = by_personal if step.alternate else by_shared
    if step.literal:
        _move(shared, _gap(shared, personal), lr * step.distance)
        fit = mean_of(losses(own.networks[0](batch.images)), chosen)
        _move(shared, gradients(fit, shared), lr)
        return fit, chosen
    fit = mean_of(losses(outputs), chosen)
    moves = gradients(fit, shared)  # before the pull, as the released code has it
    _move(shared, _gap(shared, personal), lr * step.distance)
    _move(shared, moves, small)
    return fit, chosen


def _single_step(
    own: Session, step: DualStep, batch: Batch, losses: Losses, *, lr: float, selects: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move w by the samples it selects itself."""
    outputs = own.networks[0](batch.images)
    chosen = _selected(outputs, batch, selects, step.literal)
    fit = mean_of(losses(outputs), chosen)
    size = lr if step.literal else step.personal_lr * lr
    _move(own.weights(0), gradients(fit, own.weights(0)), size)
    return fit, chosen


def _selected(outputs: torch.Tensor, batch: Batch, selects: bool, strict: bool) -> torch.Tensor:
    import torch

    if not selects:
        return torch.ones_like(batch.labels, dtype=torch.bool)
    return sieve(outputs.detach(), batch.labels, strict=strict)


def _pulled(moves: Tensors, own: Tensors, other: Tensors, strength: float, decay: float) -> Tensors:
    """Return the gradient with that of the distance to ``other`` and of the decay."""
    import torch

    with torch.no_grad():
        pulled = torch._foreach_add(moves, _gap(own, other), alpha=strength)
        return list(torch._foreach_add(pulled, own, alpha=decay))


def _gap(first: Tensors, second: Tensors) -> Tensors:
    import torch

    with torch.no_grad():
        return list(torch._foreach_sub(first, second))


def _move(weights: Tensors, directions: Tensors, size: float) -> None:
    import torch

    with torch.no_grad():
        torch._foreach_add_(weights, directions, alpha=-size)

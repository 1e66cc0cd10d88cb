"""Labels repaired from what a network predicted in the past (SELFIE, Joint Optimisation).

N samples, Q past predictions, C classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysim.core.selection import (
    EMPTY,
    ROUNDING,
    appended,
    label_uncertainty,
    majority,
    mean_prediction,
    smallest,
)
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import prediction_entropy, prior_divergence, soft_cross_entropy
from raysim.models.training import Batch, local_optimizer
from raysim.steps.dual import label_shares

if TYPE_CHECKING:
    import torch


# ---- Joint Optimisation --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JointStep:
    """One client's part of Joint Optimisation, sheet section 2."""

    prior: float
    """a, of the prediction's distance from the prior."""
    entropy: float
    """b, of the predictions' entropy."""
    own_prior: bool = False
    """The prior is the client's label shares, not uniform."""
    by_length: bool = False
    """Divide by Q also where the history is not full (released code)."""


def train_jointly(
    own: Session, step: JointStep, history: np.ndarray, targets: np.ndarray, *, update: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Train on soft ``targets`` (N, C); return the history (N, Q, C) and targets afterwards.

    With ``update`` every epoch ends with targets that are the mean of the past predictions.
    """
    import torch

    history = np.array(history)
    prior = label_shares(own) if step.own_prior and len(own.labels) else None
    optimise = local_optimizer(own.weights(), own.train)
    before = 0
    for epoch, batch in own.batches():
        if update and epoch != before:
            before, targets = epoch, _repaired(history, step)
        wanted = torch.tensor(targets[batch.index], dtype=torch.float32, device=own.device)
        logits = own.networks[0](batch.images)
        loss = joint_loss(logits, wanted, step, prior)
        optimise(gradients(loss, own.weights()))
        own.note(epoch, len(batch.index), loss)
        found = logits.detach().softmax(dim=1).cpu().numpy()
        history[batch.index] = appended(history[batch.index], found)
    return history, _repaired(history, step) if update else targets


def joint_loss(
    logits: torch.Tensor, targets: torch.Tensor, step: JointStep, prior: torch.Tensor | None = None
) -> torch.Tensor:
    """Return L_c + a L_p + b L_e (Tanaka et al. 2018, Eq. 5)."""
    return (
        soft_cross_entropy(logits, targets)
        + step.prior * prior_divergence(logits, prior)
        + step.entropy * prediction_entropy(logits)
    )


def _repaired(history: np.ndarray, step: JointStep) -> np.ndarray:
    means = history.mean(axis=1) if step.by_length else mean_prediction(history)
    return means.astype(np.float32)


# ---- SELFIE --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SelfieStep:
    """One client's part of SELFIE, sheet section 3."""

    noise_rate: float
    """Share of a batch that is not taken for clean."""
    uncertainty: float
    """eps, the largest F of a label that is repaired."""


@dataclass(frozen=True)
class Refurbished:
    """What a client knows about its samples."""

    history: np.ndarray
    """Predicted labels (N, Q), oldest first."""
    labels: np.ndarray
    """Repaired labels (N,), ``EMPTY`` where there is none."""


def train_refurbished(
    own: Session, step: SelfieStep, known: Refurbished, *, select: bool
) -> tuple[Refurbished, np.ndarray]:
    """Train, with ``select`` on small losses and repaired labels only.

    Return what is known afterwards, and which samples were taken for clean in the last epoch (all
    without ``select``).
    """
    from torch.nn.functional import cross_entropy

    history, labels = np.array(known.history), np.array(known.labels)
    clean = np.ones(len(own.labels), dtype=bool)
    update, network = local_optimizer(own.weights(), own.train), own.networks[0]
    for epoch, batch in own.batches():
        logits = network(batch.images)
        found = logits.detach().argmax(dim=1).cpu().numpy()
        history[batch.index] = appended(history[batch.index], found)
        loss = cross_entropy(logits, batch.labels)
        if select:
            losses = cross_entropy(logits.detach(), batch.labels, reduction="none").cpu().numpy()
            clean[batch.index] = smallest(losses, _clean_count(len(losses), step.noise_rate))
            labels[batch.index] = _repair(history[batch.index], labels[batch.index], step, own)
            loss = _selected_loss(own, batch, clean[batch.index], labels[batch.index])
        update(gradients(loss, own.weights()))
        own.note(epoch, len(batch.index), loss)
    return Refurbished(history, labels), clean


def _clean_count(size: int, noise_rate: float) -> int:
    return math.ceil((1.0 - noise_rate) * size - ROUNDING)


def _repair(history: np.ndarray, labels: np.ndarray, step: SelfieStep, own: Session) -> np.ndarray:
    """Return the majority label where past predictions agree, else what was repaired before."""
    sure = label_uncertainty(history, own.classes) <= step.uncertainty
    return np.where(sure, majority(history, own.classes), labels)


def _selected_loss(
    own: Session, batch: Batch, clean: np.ndarray, repaired: np.ndarray
) -> torch.Tensor:
    """Return the loss over clean and repaired samples; a repaired label goes before the given."""
    import torch
    from torch.nn.functional import cross_entropy

    is_repaired = repaired != EMPTY
    wanted = np.where(is_repaired, repaired, own.labels[batch.index])
    kept = clean | is_repaired
    target = torch.tensor(wanted[kept], dtype=torch.int64, device=own.device)
    return cross_entropy(own.networks[0](batch.images[kept]), target)

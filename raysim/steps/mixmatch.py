"""Local training of two networks on clean samples with labels and others without (DivideMix).

N samples, B of a batch, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.core.selection import clean_posterior
from raysim.models.augmentation import augmented
from raysim.models.evaluation import sample_losses
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import mixed, prior_divergence, sharpened, soft_cross_entropy
from raysim.models.training import Batch, diverged, local_optimizer
from raysim.steps.peers import DIRECTIONS

if TYPE_CHECKING:
    import torch

    Views = tuple[torch.Tensor, torch.Tensor]

SMALLEST = 2
"""Samples of a part and of a batch: batch norm needs more than one."""


@dataclass(frozen=True, kw_only=True)
class MixStep:
    """One client's part of DivideMix, sheet section 4."""

    threshold: float
    """Probability of being clean above which a label is used."""
    temperature: float
    """T of the sharpening."""
    mixing: float
    """a of Beta(a, a)."""
    unlabelled: float
    """Largest lambda_u."""
    ramp: float
    """Rounds until lambda_u is reached."""
    steps: int
    """Of the fit of two Gaussians."""

    def strength(self, elapsed: float) -> float:
        """Return lambda_u, ``elapsed`` rounds after the warm-up."""
        return self.unlabelled * (min(max(elapsed / self.ramp, 0.0), 1.0) if self.ramp else 1.0)


def train_divided(own: Session, step: MixStep, *, round_id: int) -> np.ndarray:
    """Train each network on the parts into which the other one divides the samples.

    Where a part has fewer than two samples, that network has an epoch of cross-entropy instead.
    Return whose labels network 0 trusted at the start of the last epoch.
    """
    updates = [local_optimizer(own.weights(i), own.train) for i in (0, 1)]
    clean = [np.ones(len(own.labels))] * 2
    for epoch in range(own.train.epochs):
        clean = [clean_posterior(plain_losses(own, i), steps=step.steps) for i in (0, 1)]
        for me, peer in DIRECTIONS:
            is_clean = clean[peer] > step.threshold
            if min(is_clean.sum(), (~is_clean).sum()) < SMALLEST:
                steps = cross_entropy_steps(own, me)
            else:
                steps = mixed_steps(own, step, me, clean[peer], round_id=round_id)
            for count, loss in steps:
                updates[me](gradients(loss, own.weights(me)))
                if me == 0:
                    own.note(epoch, count, loss)
    return clean[0] > step.threshold


def plain_losses(own: Session, which: int) -> np.ndarray:
    """Return the cross-entropy (N,) of a network with the labels, in evaluation mode."""
    outputs = own.looked_at(which, own.networks[which], own.classes)
    losses = sample_losses(outputs, own.labels)
    if not np.isfinite(losses).all():
        raise diverged(own.train, own.train.epochs, 2, "a sample's loss is not finite")
    return losses


def cross_entropy_steps(own: Session, me: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield size and loss of the batches of an epoch with all given labels."""
    from torch.nn.functional import cross_entropy

    for _, batch in own.batches(epochs=1):
        logits = own.networks[me](batch.images)
        yield len(batch.index), cross_entropy(logits, batch.labels)


def mixed_steps(
    own: Session, step: MixStep, me: int, clean: np.ndarray, *, round_id: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield size and loss of an epoch over the clean part; the other part goes round.

    Network ``me`` moves between two of them, its peer stays as it is, in evaluation mode.
    """
    import torch

    is_clean = clean > step.threshold
    labelled = np.flatnonzero(is_clean)
    others = _endless(own, np.flatnonzero(~is_clean))
    count = -(-len(labelled) // own.train.batch_size)
    own.networks[1 - me].eval()
    for number, (_, batch) in enumerate(own.batches(labelled, epochs=1)):
        if len(batch.index) < SMALLEST:
            continue
        sure, unsure = _views(own, batch), _views(own, next(others))
        trust = torch.tensor(clean[batch.index], dtype=torch.float32, device=own.device)
        with torch.no_grad():
            known = refined(own.networks[me], sure, labels=batch.labels, trust=trust)
            guessed = co_guessed([own.networks[me], own.networks[1 - me]], unsure)
        targets = sharpened(torch.cat([known, known, guessed, guessed]), step.temperature)
        logits, wanted = mixed_logits(own, me, torch.cat([*sure, *unsure]), targets, step.mixing)
        strength = step.strength(round_id + number / count)
        yield len(batch.index), semi_supervised(logits, wanted, 2 * len(known), strength)
    own.networks[1 - me].train()


def refined(
    network: Any, views: Views, *, labels: torch.Tensor, trust: torch.Tensor
) -> torch.Tensor:
    """Return w y + (1 - w) p; p is the mean of the network over both views."""
    from torch.nn.functional import one_hot

    p = co_guessed([network], views)
    given = one_hot(labels, p.shape[1]).to(p.dtype)
    return trust[:, None] * given + (1.0 - trust[:, None]) * p


def co_guessed(networks: Sequence[Any], views: Views) -> torch.Tensor:
    """Return the mean prediction of the networks over both views."""
    import torch

    found = [network(view).softmax(dim=1) for network in networks for view in views]
    return torch.stack(found).mean(dim=0)


def mixed_logits(
    own: Session, me: int, images: torch.Tensor, targets: torch.Tensor, mixing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and targets of images mixed with a permutation of themselves (MixMatch)."""
    import torch

    share = float(own.rng.beta(mixing, mixing))
    share = max(share, 1.0 - share)
    order = torch.tensor(own.rng.permutation(len(images)), device=own.device)
    logits = own.networks[me](mixed(images, order, share))
    return logits, mixed(targets, order, share)


def semi_supervised(
    logits: torch.Tensor, targets: torch.Tensor, labelled: int, strength: float
) -> torch.Tensor:
    """Return L_x + lambda_u L_u + L_reg; the first ``labelled`` rows have labels."""
    known = soft_cross_entropy(logits[:labelled], targets[:labelled])
    gap = (logits[labelled:].softmax(dim=1) - targets[labelled:]).square().mean()
    return known + strength * gap + prior_divergence(logits)


def _views(own: Session, batch: Batch) -> Views:
    """Return two augmentations of a batch."""
    import torch

    other = augmented(own.images[batch.index], own.train.augment, own.rng, own.black)
    return batch.images, torch.tensor(other, dtype=torch.float32, device=own.device)


def _endless(own: Session, among: np.ndarray) -> Iterator[Batch]:
    """Yield batches of at least two samples, epoch after epoch."""
    while True:
        for _, batch in own.batches(among, epochs=1):
            if len(batch.index) >= SMALLEST:
                yield batch

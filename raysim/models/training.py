"""Local training of one client: E epochs of mini-batch SGD or Adam from a received model.

The result depends on the arguments alone: every call loads the whole model, starts a new optimiser
and draws its randomness from ``rng``. torch is loaded on the first call, not with this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from raysim.models.augmentation import augmented
from raysim.models.params import image_shape_of, load_tree, module_for, seeded, to_tree
from raysim.models.zoo import Model
from raysim.protocols import Tree
from raysim.settings import In, check, settings

if TYPE_CHECKING:
    import torch

    from raysim.models.optimizers import Update

    Loss = Callable[[torch.Tensor, "Batch"], torch.Tensor]
    Regulariser = Callable[[torch.nn.Module], torch.Tensor]

LARGEST_WEIGHT = 1e8
"""Weights from here on have diverged."""


@settings
class TrainSettings:
    """Rounds and local training; the defaults are ours, a small run that learns."""

    rounds: Annotated[int, In("[0, inf)", do="try 20")] = 20
    epochs: Annotated[int, In("[1, inf)", do="try 2")] = 2  # FB-NLL and RCC-PFL
    """Passes over a client's samples per round."""
    batch_size: Annotated[int, In("[1, inf)", do="try 32")] = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Annotated[float, In("(0, inf)", do="try 0.05 for sgd")] = 0.05
    momentum: Annotated[float, In("[0, 1)", do="try 0.5")] = 0.0
    """SGD only; starts from zero every round."""
    weight_decay: Annotated[float, In("[0, inf)", do="try 0.001")] = 0.0
    """Added to the gradient times the weights (L2), by both optimisers."""
    proximal: Annotated[float, In("[0, inf)", do="try 0.001")] = 0.0
    """FedProx's mu: the gradient of (mu / 2) ||w - w_received||^2 over the trainable weights."""
    participation: Annotated[float, In("(0, 1]", do="1.0 trains every client")] = 1.0
    """Fraction of the clients that train in a round."""
    augment: Literal["none", "flip", "crop_flip"] = "none"
    mixup: Annotated[float, In("[0, inf)", do="1.0 is FedCorr's")] = 0.0
    """a of Beta(a, a): a batch is mixed with a permutation of itself; 0: off."""
    order: Literal["shuffled", "stored"] = "shuffled"
    """Order of a client's samples: a new permutation every epoch, or as they are stored."""
    kernel: Literal["auto", "autograd", "closed_form"] = "auto"
    """closed_form: many clients at once, for dense models; auto picks it where it exists. The run's
    saved config holds the choice, since the two differ in the last bits."""

    def __post_init__(self) -> None:
        kinds = ("none", "flip", "crop_flip")
        rule = f"must be one of {', '.join(kinds)}"
        check(self.augment in kinds, "augment", rule, got=self.augment, do="none is the default")
        known = self.optimizer in ("sgd", "adam")
        do = "sgd is the default"
        check(known, "optimizer", "must be sgd or adam", got=self.optimizer, do=do)
        ok = self.momentum == 0.0 or self.optimizer == "sgd"
        check(ok, "momentum", "must be 0 with adam", got=self.momentum, do="use optimizer sgd")


@dataclass(frozen=True)
class TrainReport:
    """What a client tells about its training, besides the weights."""

    loss: float
    """Mean over the samples of the last epoch, without the regulariser; nan without samples."""
    steps: int
    """Optimiser steps over all epochs (FedNova's tau)."""
    samples: int


@dataclass(frozen=True)
class Batch:
    """What a loss may use of one step."""

    index: np.ndarray
    """Positions in the client's arrays, to pick soft labels or sample weights that a loss holds."""
    images: torch.Tensor
    labels: torch.Tensor
    partners: torch.Tensor | None = None
    """Labels of the samples that were mixed in; None without mixup."""
    share: float = 1.0
    """Of a sample itself in its mixture."""


def train_client(
    model: Model,
    tree: Tree,
    images: np.ndarray,
    labels: np.ndarray,
    settings: TrainSettings,
    *,
    rng: np.random.Generator,
    classes: int,
    loss: Loss | None = None,
    regulariser: Regulariser | None = None,
    device: str = "cpu",
    black: np.ndarray | None = None,
) -> tuple[Tree, TrainReport]:
    """Return the model after ``settings.epochs`` epochs on one client's samples, and a report.

    ``images`` are normalised float32 (N, channels, height, width), ``labels`` integers (N,).
    ``black`` (channels,) is what crops move in (augmentation.py).
    ``loss(logits, batch)`` replaces mean cross-entropy; ``regulariser(module)`` is added to it.
    """
    if len(labels) == 0:
        return tree, TrainReport(loss=float("nan"), steps=0, samples=0)
    module = module_for(model, image_shape_of(images), classes, device=device)
    load_tree(module, tree)
    module.train()
    with seeded(int(rng.integers(2**63)), device):
        steps = batches(images, labels, settings, rng=rng, device=device, black=black)
        report = _descend(module, steps, settings, loss or _cross_entropy, regulariser)
    trained = to_tree(module)
    refuse_diverged(trained, settings, report.steps)
    return trained, report


def batches(
    images: np.ndarray,
    labels: np.ndarray,
    settings: TrainSettings,
    *,
    rng: np.random.Generator,
    device: str,
    black: np.ndarray | None = None,
    among: np.ndarray | None = None,
    epochs: int | None = None,
) -> Iterator[tuple[int, Batch]]:
    """Yield (epoch from 1, batch), each epoch in a new order; its last batch may be short.

    ``among`` are positions of the samples to take (default all), ``epochs`` overrides the settings.
    """
    import torch

    taken = np.arange(len(labels)) if among is None else among
    for epoch in range(1, (settings.epochs if epochs is None else epochs) + 1):
        shuffled = settings.order == "shuffled"
        order = taken[rng.permutation(len(taken))] if shuffled else taken
        for start in range(0, len(order), settings.batch_size):
            index = order[start : start + settings.batch_size]
            chosen = augmented(images[index], settings.augment, rng, black)
            # Copies in torch's own memory: BLAS may give other bits for another alignment.
            batch = Batch(
                index=index,
                images=torch.tensor(chosen, dtype=torch.float32, device=device),
                labels=torch.tensor(labels[index], dtype=torch.int64, device=device),
            )
            yield epoch, _mixed(batch, settings.mixup, rng) if settings.mixup else batch


def _mixed(batch: Batch, alpha: float, rng: np.random.Generator) -> Batch:
    """Return the batch mixed with a permutation of itself by one share from Beta(a, a)."""
    share = float(rng.beta(alpha, alpha))
    order = rng.permutation(len(batch.index))
    images = share * batch.images + (1.0 - share) * batch.images[order]
    return replace(batch, images=images, partners=batch.labels[order], share=share)


def _descend(
    module: torch.nn.Module,
    batches: Iterator[tuple[int, Batch]],
    settings: TrainSettings,
    loss: Loss,
    regulariser: Regulariser | None,
) -> TrainReport:
    """Move the module's parameters, one step per batch, and report."""
    import torch

    parameters: list[torch.Tensor] = list(module.parameters())
    update = local_optimizer(parameters, settings)
    steps = samples = last_epoch = 0
    total = 0.0
    for epoch, batch in batches:
        if epoch != last_epoch:
            last_epoch, samples, total = epoch, 0, 0.0
        fit = _fit(module(batch.images), batch, loss)
        objective = fit if regulariser is None else fit + regulariser(module)
        steps += 1
        value = objective.item()
        if not math.isfinite(value):
            raise diverged(settings, epoch, steps, f"the loss is {value}")
        # Not backward(): the module is shared between clients and must keep no gradients.
        update(list(torch.autograd.grad(objective, parameters)))
        samples += len(batch.index)
        total += len(batch.index) * (value if regulariser is None else fit.item())
    return TrainReport(loss=total / samples, steps=steps, samples=samples)


def _fit(logits: torch.Tensor, batch: Batch, loss: Loss) -> torch.Tensor:
    """Return the loss, for a mixed batch the mixture of those with either label."""
    if batch.partners is None:
        return loss(logits, batch)
    other = replace(batch, labels=batch.partners)
    return batch.share * loss(logits, batch) + (1.0 - batch.share) * loss(logits, other)


def _cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    from torch.nn.functional import cross_entropy

    return cross_entropy(logits, batch.labels)


def local_optimizer(parameters: list[torch.Tensor], settings: TrainSettings) -> Update:
    """Return the update that the settings ask for, with FedProx's pull to where it starts."""
    from raysim.models import optimizers

    lr, decay = settings.lr, settings.weight_decay
    if settings.optimizer == "adam":
        update = optimizers.adam(parameters, lr=lr, decay=decay)
    else:
        update = optimizers.sgd(parameters, lr=lr, momentum=settings.momentum, decay=decay)
    if not settings.proximal:
        return update
    received = [w.detach().clone() for w in parameters]

    def pulled(gradients: list[torch.Tensor]) -> None:
        """Add mu (w - w_received), the gradient of FedProx's proximal term."""
        pull = [w.detach() - r for w, r in zip(parameters, received, strict=True)]
        update([g + settings.proximal * p for g, p in zip(gradients, pull, strict=True)])

    return pulled


def refuse_diverged(tree: Tree, settings: TrainSettings, step: int) -> None:
    """Refuse weights that no network comes back from; running statistics need only be finite."""
    if not (np.isfinite(tree["buffers"]).all() and has_sane_weights(tree["trainable"])):
        what = f"the weights are not finite or not below {LARGEST_WEIGHT:g}"
        raise diverged(settings, settings.epochs, step, what)


def has_sane_weights(trainable: np.ndarray, axis: int | None = None) -> Any:
    """Return whether all weights are finite and not absurdly large."""
    return (np.abs(trainable) < LARGEST_WEIGHT).all(axis=axis)


def diverged(settings: TrainSettings, epoch: int, step: int, what: str) -> FloatingPointError:
    """Return the error that says what to do about weights or losses that are not finite."""
    first = "" if step > 1 else ", or look for non-finite images: no step was made yet"
    return FloatingPointError(
        f"training diverged: {what} in epoch {epoch} of {settings.epochs}, step {step}, "
        f"with {settings.optimizer} and lr {settings.lr:g}; lower train.lr{first}"
    )

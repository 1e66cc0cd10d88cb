"""Samples kept by their loss under a model of the server's clean images (MR)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysim.core.thresholds import closest_cut, cut_distances, loss_bins
from raysim.models.evaluation import logits, sample_losses
from raysim.models.params import image_shape_of, initial_tree
from raysim.models.sessions import Session, gradients, open_session
from raysim.models.threads import one_thread, torch_device
from raysim.models.training import TrainSettings, local_optimizer
from raysim.models.zoo import Model
from raysim.protocols import Client, Context, Contribution, State, Tree
from raysim.seeding import stream
from raysim.steps.local_training import client_logits, current_labels
from raysim.steps.server import SCALAR_BYTES
from raysim.steps.sessions import client_session, sent_model

KEPT = "benchmark/kept"
"""In a client's memory: which of its samples it trains on."""
TRAINED_PART = 1 / 1.3
"""Of the clean images; the losses of the others are the reference."""
BATCH = 16
FIRST_STOP = 10
"""Epochs before training may stop."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkStep:
    """How the benchmark model is trained, and how losses are counted."""

    patience: int
    """Epochs without a lower held-out loss after which training stops."""
    max_epochs: int
    bins: int
    largest: float
    """Loss at which the last bin begins, nearly."""

    def binned(self, losses: np.ndarray) -> np.ndarray:
        """Return the bin of each loss."""
        return loss_bins(losses, largest=self.largest, bins=self.bins)

    def counted(self, losses: np.ndarray) -> np.ndarray:
        """Return the histogram."""
        return np.bincount(self.binned(losses), minlength=self.bins).astype(np.int32)


def select_by_benchmark(context: Context, state: State, *, step: BenchmarkStep) -> State:
    """Train the benchmark model, find the threshold, let every client keep what is below it."""
    config, federation = context.config, context.federation
    (black,) = federation.map(black_task, on=federation.clients[:1]).values()
    found = federation.serve(
        train_benchmark,
        images=context.server_images(),
        labels=context.clean[1],
        black=black,
        model=config.model,
        train=config.train,
        classes=context.classes,
        seed=config.seed,
        step=step,
    )
    shared = {
        "benchmark": federation.put(found["model"]),
        "model": config.model,
        "classes": context.classes,
        "kernel": config.train.kernel,
        "step": step,
    }
    clients = len(federation.clients)
    context.sent("down", "benchmark model", clients * shared["benchmark"].nbytes)
    counts = federation.map(histogram_task, **shared)
    context.sent("up", "loss histogram", clients * step.bins * SCALAR_BYTES)
    pooled = np.sum(list(counts.values()), axis=0)
    cut = closest_cut(found["reference"], pooled)
    context.sent("down", "threshold", clients * SCALAR_BYTES)
    context.observe_selection(federation.map(keep_task, cut=cut, **shared))
    context.record(
        benchmark={
            "epochs": found["epochs"],
            "loss": found["loss"],
            "threshold": (cut + 1) * step.largest / step.bins,
            "distance": float(cut_distances(found["reference"], pooled)[cut]),
            "kept": float(pooled[: cut + 1].sum() / max(pooled.sum(), 1)),
        }
    )
    return state


# ---- at the server ---------------------------------------------------------------------------


def train_benchmark(
    *,
    images: np.ndarray,
    labels: np.ndarray,
    black: np.ndarray,
    model: Model,
    train: TrainSettings,
    classes: int,
    seed: int,
    step: BenchmarkStep,
) -> dict[str, Any]:
    """Return the model of lowest held-out loss, that loss, and the held-out losses' histogram.

    A part of the clean images trains it, the others are held out.
    """
    rng = stream(seed, "benchmark")
    order = rng.permutation(len(labels))
    size = min(max(int(len(labels) * TRAINED_PART), 1), len(labels) - 1)
    mine, held = order[:size], order[size:]
    start = initial_tree(model, image_shape_of(images), classes, seed)
    how = replace(train, batch_size=BATCH, proximal=0.0)
    device = torch_device()
    with (
        one_thread(),
        open_session(
            model,
            [start],
            images[mine],
            labels[mine],
            how,
            rng=rng,
            classes=classes,
            device=device,
            black=black,
        ) as own,
    ):

        def losses(tree: Tree) -> np.ndarray:
            found = logits(model, tree, images[held], classes=classes, device=device)
            return sample_losses(found, labels[held])

        tree, epochs = _best_epoch(own, losses, step)
        reference = losses(tree)
    loss = float(reference.mean())
    return {"model": tree, "epochs": epochs, "loss": loss, "reference": step.counted(reference)}


def _best_epoch(own: Session, losses: Any, step: BenchmarkStep) -> tuple[Tree, int]:
    """Train; return the weights of lowest mean of ``losses`` and how many epochs it took."""
    from torch.nn.functional import cross_entropy

    weights = own.weights()
    update = local_optimizer(weights, own.train)
    best: Tree = own.tree()
    lowest, when = np.inf, 0
    for epoch in range(1, step.max_epochs + 1):
        for _, batch in own.batches(epochs=1):
            loss = cross_entropy(own.networks[0](batch.images), batch.labels)
            update(gradients(loss, weights))
            own.note(epoch, len(batch.index), loss)
        tree = own.tree()
        mean = float(losses(tree).mean())
        if mean < lowest:
            best, lowest, when = tree, mean, epoch
        if epoch > FIRST_STOP and epoch - when >= step.patience:
            break
    return best, epoch


# ---- at clients ------------------------------------------------------------------------------


def black_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray]:
    """Reply with what crops move in: how images are prepared is the same everywhere."""
    return memory, client.world.black


def histogram_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray]:
    """Reply with the histogram of the losses of the client's samples."""
    losses = _losses(client, memory, arguments)
    client.scratch["benchmark"] = losses
    return memory, arguments["step"].counted(losses)


def keep_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray]:
    """Remember which samples lie below the threshold; reply with them, for the evaluator only."""
    losses = client.scratch.pop("benchmark", None)
    losses = _losses(client, memory, arguments) if losses is None else losses
    kept = arguments["step"].binned(losses) <= arguments["cut"]
    return {**memory, KEPT: kept}, kept


def train_kept_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after training on the kept samples; it counts by their number.

    A client that kept none sends what it received, with next to no weight.
    """
    kept = np.asarray(memory[KEPT])
    with client_session(client, memory, arguments) as own:
        own.descend(among=np.flatnonzero(kept))
        return memory, sent_model(own, weight=float(kept.sum()))


def _losses(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> np.ndarray:
    images = client.world.images(client.sample_ids)
    found = client_logits(arguments["benchmark"], images, arguments)
    return sample_losses(found, current_labels(client, memory))

"""Local training by small losses, class centroids and pseudo-labels (Robust FL)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.core.centroids import class_means, cosine, merged, moved, nearest_class
from raysim.core.selection import small_loss
from raysim.models.params import layout
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import prediction_entropy
from raysim.models.training import Batch, local_optimizer
from raysim.protocols import Client, ClientId, Context, Contribution, State, Tree
from raysim.seeding import stream
from raysim.steps.group_training import train_groups_by
from raysim.steps.server import group_model
from raysim.steps.sessions import client_session, sent_model

if TYPE_CHECKING:
    import torch

CENTROIDS = "centroids/0"
"""Name of the stored class centroids f_G (C, D)."""


@dataclass(frozen=True, kw_only=True)
class CentroidStep:
    """One client's part of a round."""

    rate: float
    """eps_t, share of a batch that is left out."""
    pull: float
    """lambda_cen, towards the centroid of the own class."""
    certainty: float
    """lambda_e, of the entropy."""
    corrects: bool
    """Samples whose centroid contradicts their label get the pseudo-label."""
    attached: bool = True
    """The pull has a gradient; it is a mean then. The released code has a sum without one."""


def centroid_round(
    context: Context, state: State, chosen: Sequence[ClientId], *, step: CentroidStep, server: Any
) -> State:
    """Train ``chosen``, all of group 0, and merge their models and centroids."""
    federation = context.federation
    first = CENTROIDS not in state.models
    received = federation.put(_random(context)) if first else state.models[CENTROIDS]
    shared = {"centroids": received, "first": first, "step": step, "server": server}
    state, replies = train_groups_by(centroid_task, context, state, chosen, **shared)
    context.sent("down", "centroids", len(chosen) * received.nbytes)
    context.sent("up", "centroids", len(replies) * received.nbytes)
    name = group_model(0)
    mean = state.models[name]
    new = {
        name: federation.derive(model_part, mean=mean),
        CENTROIDS: federation.derive(merged_centroids, received=received, mean=mean),
    }
    return replace(state, models={**state.models, **new})


def _random(context: Context) -> Tree:
    """Return the centroids of the start: N(0, 1)."""
    config = context.config
    shapes = dict(layout(config.model, context.image_shape, context.classes).trainable)
    drawn = stream(config.seed, "centroids").normal(size=shapes["head.weight"])
    return {"centroids": drawn.astype(np.float32)}


def model_part(*, mean: Tree) -> Tree:
    """Return the model without what travelled along."""
    return {part: mean[part] for part in ("trainable", "buffers")}


def merged_centroids(*, received: Tree, mean: Tree) -> Tree:
    """Return the clients' centroids weighted by their agreement with the received ones."""
    weighted = np.asarray(mean["centroids"], dtype=np.float64)
    agreement = np.asarray(mean["agreement"], dtype=np.float64)
    found = merged(np.asarray(received["centroids"], np.float64), weighted, agreement)
    return {"centroids": found.astype(np.float32)}


def centroid_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model, and with the centroids times their agreement with the received ones.

    The agreement is the cosine, at least 0. In the first round it is 1 for the classes a client
    has, since a cosine to random vectors says nothing.
    """
    step: CentroidStep = arguments["step"]
    received = np.asarray(arguments["centroids"]["centroids"])
    with client_session(client, memory, arguments) as own:
        features, pseudo = looked_at(own)
        start = received
        if arguments["first"]:
            start = class_means(features, own.labels, own.classes)
        found, kept = train_by_centroids(own, step, centroids=start, pseudo=pseudo)
        weight = cosine(received, found).clip(min=0.0)
        if arguments["first"]:
            weight = (np.bincount(own.labels, minlength=own.classes) > 0).astype(np.float32)
        tree = {**own.tree(), "centroids": weight[:, None] * found, "agreement": weight}
        selected = kept if step.rate else None
        return memory, sent_model(own, tree=tree, selected=selected)


def looked_at(own: Session) -> tuple[np.ndarray, np.ndarray]:
    """Return features (N, D) and predicted classes (N,) by the received model, as it predicts."""
    import torch

    network = own.networks[0]
    width = network.head.in_features

    def both(images: torch.Tensor) -> torch.Tensor:
        found = network.features(images)
        return torch.cat([found, network.head(found)], dim=1)

    found = own.looked_at(0, both, width + own.classes)
    return found[:, :width].copy(), found[:, width:].argmax(axis=1)


def train_by_centroids(
    own: Session, step: CentroidStep, *, centroids: np.ndarray, pseudo: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Train network 0; return the centroids after it and which samples the last epoch used.

    A batch of which nothing is left makes no step.
    """
    import torch

    weights = own.weights()
    update = local_optimizer(weights, own.train)
    own_means = torch.tensor(centroids, dtype=torch.float32, device=own.device)
    kept = np.zeros(len(own.labels), dtype=bool)
    for epoch, batch in own.batches():
        features, logits, losses = _forward(own, batch)
        small = small_loss(losses.detach().cpu().numpy(), step.rate)
        kept[batch.index] = small
        if not small.any():
            own.note(epoch, len(small), losses.mean())
            continue
        places = torch.tensor(np.flatnonzero(small), device=own.device)
        guessed = torch.tensor(pseudo[batch.index[small]], device=own.device)
        seen, labels = features[places], batch.labels[places]
        loss = robust_loss(
            seen, logits[places], labels, step=step, centroids=own_means, pseudo=guessed
        )
        update(gradients(loss, weights))
        own_means = moved(own_means, class_means(seen.detach(), labels, own.classes))
        own.note(epoch, len(small), loss)
    return own_means.cpu().numpy(), kept


def _forward(own: Session, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features, logits and the losses with the given labels."""
    from torch.nn.functional import cross_entropy

    network = own.networks[0]
    features = network.features(batch.images)
    logits = network.head(features)
    return features, logits, cross_entropy(logits, batch.labels, reduction="none")


def robust_loss(
    features: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    step: CentroidStep,
    centroids: torch.Tensor,
    pseudo: torch.Tensor,
) -> torch.Tensor:
    """Return CE + lambda_cen L_cen + lambda_e H of the samples of small loss."""
    import torch
    from torch.nn.functional import cross_entropy

    agrees = nearest_class(features.detach(), centroids) == labels
    targets = torch.where(agrees, labels, pseudo) if step.corrects else labels
    ends = features if step.attached else features.detach()
    gaps = ((ends - centroids[labels]) ** 2).sum(dim=1) * agrees
    pull = gaps.mean() / features.shape[1] if step.attached else gaps.sum()
    fit = cross_entropy(logits, targets)
    return fit + step.pull * pull + step.certainty * prediction_entropy(logits)

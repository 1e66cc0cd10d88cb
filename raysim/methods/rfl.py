"""Robust FL: small losses, shared class centroids, pseudo-labels.

Yang, Park, Byun and Kim, IEEE Intelligent Systems 2022. We have not read it: what is built, and the
settings, are those of the released (unofficial) code (raysim/docs/sheets/rfl.md).

Deviations from that code:
- the pull to the centroids has a gradient and is a mean over samples and features: the code
  detaches the features, so its sum moves nothing (``parity: code`` does the same); with a gradient
  that sum outweighs the cross-entropy, and features collapse;
- in the first round every client that has a class counts the same in its centroid, since cosines
  to the random start say nothing; later a negative cosine counts as 0, and a class without any
  agreement keeps its centroid (the code divides by a sum that may be 0);
- features are what enters the last layer, in every network (FedFixer's LeNet takes an earlier one,
  of 400).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace, device

from raysim.core.selection import small_loss
from raysim.core.spectra import Array
from raysim.methods.method import METHODS, Method, other_training, share_of_rounds
from raysim.models.params import layout
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import prediction_entropy
from raysim.models.training import local_optimizer
from raysim.protocols import Context, Contribution, State, Tree, Where
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.steps.group_training import chosen_clients, evaluated
from raysim.steps.server import group_model
from raysim.steps.sessions import sent_model

if TYPE_CHECKING:
    import torch

CENTROIDS = "centroids/0"
"""Name of the stored class centroids f_G (C, D)."""


@METHODS.register("rfl")
@settings
class RobustFl(Method):
    """Robust FL (Yang et al. 2022): class centroids are shared, labels corrected by the model."""

    forget_rate: Annotated[float, In("[0, 1)", do="try the share of wrong labels")] = 0.2
    """eps, the share of a batch that is left out in the end."""
    ramp_rounds: Annotated[int, In("[0, inf)", do="try 10")] = 10
    """Rounds over which that share grows from 0."""
    pseudo_rounds: Annotated[int | None, In("[0, inf)", do="try 10")] = None
    """T_pl, rounds before labels are corrected, in which the pull grows; null: a tenth of
    train.rounds (100 of 1000)."""
    pull: Annotated[float, In("[0, inf)", do="try 1.0")] = 1.0
    """lambda_cen, towards the centroid of the own class."""
    entropy: Annotated[float, In("[0, inf)", do="try 0.8")] = 0.8
    """lambda_e."""
    parity: Literal["paper", "code"] = "paper"
    title: ClassVar[str] = "Robust FL"
    refuses: ClassVar = (other_training,)
    counted_by: ClassVar = "uniform"  # as the code

    # ---- at the server -------------------------------------------------------------------------

    def round(self, context: Context, state: State) -> State:
        """Let the chosen clients train; merge their models and their centroids."""
        federation = context.federation
        first = CENTROIDS not in state.models
        received = federation.put(random_centroids(context)) if first else state.models[CENTROIDS]
        chosen = chosen_clients(context)
        state, replies = self.train_groups(context, state, chosen, centroids=received, first=first)
        context.sent("down", "centroids", len(chosen) * received.nbytes)
        context.sent("up", "centroids", len(replies) * received.nbytes)
        name = group_model(0)
        mean = state.models[name]
        new = {
            name: federation.derive(model_part, mean=mean),
            CENTROIDS: federation.derive(merged_centroids, received=received, mean=mean),
        }
        return evaluated(context, replace(state, models={**state.models, **new}))

    # ---- at a client ---------------------------------------------------------------------------

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Reply with the model, and with the centroids times their agreement with the received.

        The agreement is the cosine, at least 0. In the first round it is 1 for the classes a client
        has, since a cosine to random vectors says nothing.
        """
        received = np.asarray(session.sent["centroids"]["centroids"])
        features, pseudo = features_and_pseudo_labels(session)
        start = received
        if session.sent["first"]:
            start = class_means(features, session.labels, session.classes)
        centroids, kept = self.train_by_centroids(
            session, where.round, centroids=start, pseudo=pseudo
        )
        agreement = cosine(received, centroids).clip(min=0.0)
        if session.sent["first"]:
            counts = np.bincount(session.labels, minlength=session.classes)
            agreement = (counts > 0).astype(np.float32)
        weighted = {"centroids": agreement[:, None] * centroids, "agreement": agreement}
        rate, _, _ = self.schedule(where.round, session.train.rounds)
        tree = {**session.tree(), **weighted}
        return memory, sent_model(session, tree=tree, selected=kept if rate else None)

    def schedule(self, round_id: int, rounds: int) -> tuple[float, float, bool]:
        """Return eps_t, the grown lambda_cen, and whether labels are corrected yet."""
        wait = share_of_rounds(rounds, self.pseudo_rounds, 10)
        grown = min(round_id / self.ramp_rounds, 1.0) if self.ramp_rounds else 1.0
        pulled = min(round_id / wait, 1.0) if wait else 1.0
        return self.forget_rate * grown, self.pull * pulled, round_id >= wait

    def train_by_centroids(
        self, session: Session, round_id: int, *, centroids: np.ndarray, pseudo: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Train the model; return the centroids after it and which samples the last epoch used.

        A batch of which nothing is left makes no step.
        """
        import torch
        from torch.nn.functional import cross_entropy

        rate, pull, corrects = self.schedule(round_id, session.train.rounds)
        network, weights = session.networks[0], session.weights()
        update = local_optimizer(weights, session.train)
        means = torch.tensor(centroids, dtype=torch.float32, device=session.device)
        kept = np.zeros(len(session.labels), dtype=bool)
        for epoch, batch in session.batches():
            features = network.features(batch.images)
            logits = network.head(features)
            losses = cross_entropy(logits, batch.labels, reduction="none")
            small = small_loss(losses.detach().cpu().numpy(), rate)
            kept[batch.index] = small
            if not small.any():
                session.note(epoch, len(small), losses.mean())
                continue
            places = torch.tensor(np.flatnonzero(small), device=session.device)
            guessed = torch.tensor(pseudo[batch.index[small]], device=session.device)
            seen, labels = features[places], batch.labels[places]
            how = {"centroids": means, "pseudo": guessed}
            loss = self.loss(seen, logits[places], labels, pull=pull, corrects=corrects, **how)
            update(gradients(loss, weights))
            means = moved(means, class_means(seen.detach(), labels, session.classes))
            session.note(epoch, len(small), loss)
        return means.cpu().numpy(), kept

    def loss(
        self,
        features: torch.Tensor,
        logits: torch.Tensor,
        labels: torch.Tensor,
        *,
        centroids: torch.Tensor,
        pseudo: torch.Tensor,
        pull: float,
        corrects: bool,
    ) -> torch.Tensor:
        """Return CE + lambda_cen L_cen + lambda_e H of the samples of small loss.

        A sample whose nearest centroid contradicts its label is not pulled, and ``corrects`` gives
        it its pseudo-label.
        """
        import torch
        from torch.nn.functional import cross_entropy

        agrees = nearest_class(features.detach(), centroids) == labels
        targets = torch.where(agrees, labels, pseudo) if corrects else labels
        ends = features if self.parity == "paper" else features.detach()
        gaps = ((ends - centroids[labels]) ** 2).sum(dim=1) * agrees
        to_centroids = gaps.mean() / features.shape[1] if self.parity == "paper" else gaps.sum()
        fit = cross_entropy(logits, targets)
        return fit + pull * to_centroids + self.entropy * prediction_entropy(logits)


def features_and_pseudo_labels(session: Session) -> tuple[np.ndarray, np.ndarray]:
    """Return features (N, D) and pseudo-labels (N,): what the received model sees and predicts."""
    import torch

    network = session.networks[0]
    width = network.head.in_features

    def both(images: torch.Tensor) -> torch.Tensor:
        features = network.features(images)
        return torch.cat([features, network.head(features)], dim=1)

    rows = session.looked_at(0, both, width + session.classes)
    return rows[:, :width].copy(), rows[:, width:].argmax(axis=1)


def random_centroids(context: Context) -> Tree:
    """Return the centroids of the start: N(0, 1)."""
    config = context.config
    shapes = dict(layout(config.model, context.image_shape, context.classes).trainable)
    drawn = stream(config.seed, "centroids").normal(size=shapes["head.weight"])
    return {"centroids": drawn.astype(np.float32)}


def model_part(*, mean: Tree) -> Tree:
    """Return the model without the centroids that travelled along."""
    return {part: mean[part] for part in ("trainable", "buffers")}


def merged_centroids(*, received: Tree, mean: Tree) -> Tree:
    """Return the clients' centroids weighted by their agreement with the received ones."""
    weighted = np.asarray(mean["centroids"], dtype=np.float64)
    agreement = np.asarray(mean["agreement"], dtype=np.float64)
    centroids = merged(np.asarray(received["centroids"], np.float64), weighted, agreement)
    return {"centroids": centroids.astype(np.float32)}


# ---- class centroids and how they move. N samples, C classes, D features, arrays of any library --

SMALLEST_NORM = 1e-12
"""Norms and weights up to this count as zero."""


def class_means(features: Array, labels: Array, classes: int) -> Array:
    """Return the mean feature of each class (C, D); zeros for a class without a sample."""
    xp = array_namespace(features, labels)
    members = xp.arange(classes, device=device(labels))[:, None] == labels[None, :]
    shares = xp.astype(members, features.dtype)
    counts = xp.sum(shares, axis=1)
    return (shares @ features) / xp.clip(counts, 1.0, None)[:, None]


def cosine(first: Array, second: Array) -> Array:
    """Return the cosine of each row of one (N, D) with that row of the other; 0 for zero rows."""
    xp = array_namespace(first, second)
    return xp.sum(_unit(first) * _unit(second), axis=1)


def nearest_class(features: Array, centroids: Array) -> Array:
    """Return the class (N,) whose centroid has the largest cosine; of several the lowest."""
    xp = array_namespace(features, centroids)
    return xp.argmax(_unit(features) @ xp.matrix_transpose(_unit(centroids)), axis=1)


def moved(centroids: Array, means: Array) -> Array:
    """Return (1 - s^2) f + s^2 fhat with s = cos(f, fhat), class by class (C, D).

    A class without a sample has zeros for a mean, so s is 0 and its centroid stays.
    """
    share = (cosine(centroids, means) ** 2)[:, None]
    return (1.0 - share) * centroids + share * means


def merged(received: Array, weighted: Array, agreement: Array) -> Array:
    """Return sum_k w_k f_k / sum_k w_k from the two sums (or means), class by class (C, D).

    ``received`` where nobody has a weight.
    """
    xp = array_namespace(received, weighted, agreement)
    has = agreement > SMALLEST_NORM
    means = weighted / xp.where(has, agreement, xp.ones_like(agreement))[:, None]
    return xp.where(has[:, None], means, received)


def _unit(rows: Array) -> Array:
    xp = array_namespace(rows)
    norms = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    return rows / xp.clip(norms, SMALLEST_NORM, None)

"""RHFL: clients with their own models learn from each other's predictions (Fang and Ye 2022).

"Robust Federated Learning with Noisy and Heterogeneous Clients", CVPR 2022; the steps below are
those of "A round" in raysim/docs/sheets/rhfl.md. Also inside groups, as FB-NLL's tables use it, and
after FB-NLL's label correction. The public images are the server's clean ones without their labels
(FB-NLL). No weights are averaged: a client's model stays in its memory.

Deviations from the paper:
- all clients have the same network and start from the same weights (FB-NLL: homogeneous models);
- no pre-training, as in FB-NLL (``pretrain_epochs``; RHFL's own: 40);
- client confidences are normalised by sum |q|, since sum q may vanish (RHFL+ does so too);
- the loss that measures confidence is computed on images as they are, not augmented;
- accuracy is measured after a round, as for all methods, not before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from raysim.core.threads import one_thread, torch_device
from raysim.errors import ConfigError
from raysim.methods.method import (
    METHODS,
    GroupsSettings,
    InGroups,
    Repair,
    no_clean_images,
    server_optimizers,
)
from raysim.models.params import (
    image_shape_of,
    initial_tree,
    load_tree,
    module_for,
    seeded,
    to_tree,
)
from raysim.models.training import TrainSettings
from raysim.models.zoo import Model
from raysim.protocols import Client, ClientId, Context, Contribution, Stage, State, Tree, stateless
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.steps.correction import CorrectionSettings
from raysim.steps.evaluation import is_due, logit_scores, record_scores
from raysim.steps.group_training import chosen_clients, local_arguments, mean_loss
from raysim.steps.local_training import client_logits, current_labels, trained_model
from raysim.steps.server import SCALAR_BYTES, members_by_group

if TYPE_CHECKING:
    import torch

    from raysim.models.training import Batch

SMALLEST_TARGET = 1e-4
"""Targets of zero are raised to this before the log, as in the released code: -log is 9.21."""
SMALLEST_PROBABILITY = 1e-7
TINY = 1e-12


@settings
class SymmetricCrossEntropy:
    """Symmetric cross-entropy, a CE + b RCE: the reverse part forgives wrong labels."""

    forward: Annotated[float, In("[0, inf)", do="try 0.1 and 1.0")] = 0.1
    """a, of the usual cross-entropy."""
    reverse: Annotated[float, In("[0, inf)", do="try 0.1 and 1.0")] = 1.0
    """b, of -sum_c p_c log(clipped one-hot_c)."""

    def __call__(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the mean over the batch."""
        return self.per_sample(logits, batch.labels).mean()

    def per_sample(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of every row."""
        import torch
        from torch.nn.functional import cross_entropy, one_hot

        probability = torch.softmax(logits, dim=1).clamp(SMALLEST_PROBABILITY, 1.0)
        target = one_hot(labels, logits.shape[1]).to(logits.dtype).clamp(SMALLEST_TARGET, 1.0)
        reverse = -(probability * target.log()).sum(dim=1)
        return self.forward * cross_entropy(logits, labels, reduction="none") + (
            self.reverse * reverse
        )


@METHODS.register("rhfl")
@settings
class Rhfl(InGroups):
    """RHFL (Fang and Ye 2022): align predictions on public images, learn with a robust loss."""

    title: ClassVar[str] = "RHFL"
    stateless: ClassVar[bool] = False
    refuses: ClassVar = (
        no_clean_images("aligns predictions on public images held there"),
        server_optimizers("averages no models"),
    )

    confidence: Annotated[float, In("[0, inf)")] = 0.5
    """eta, how much a falling loss raises a client's weight; 0: all alike."""
    loss: SymmetricCrossEntropy = SymmetricCrossEntropy()
    lr: Annotated[float, In("(0, inf)", do="try 0.001")] = 0.001
    """Of the steps on public images and, with ``local: original``, on a client's samples."""
    local: Literal["original", "config"] = "original"
    """original: Adam with ``lr``, no decay; config: the optimiser of the train section."""
    public_batch: Annotated[int, In("[1, inf)")] = 256
    pretrain_epochs: Annotated[int, In("[0, inf)")] = 0
    """Epochs on a client's own samples before the first round."""
    freeze_statistics: bool = False
    """Keep batch norm's running statistics out of the public images."""

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return the grouping, the training alone where there is one, and the rounds."""
        alone = (Stage("pretrain", 1, self.pretrain),) if self.pretrain_epochs else ()
        return (
            self.grouping_stage(config),
            *alone,
            Stage("train", config.train.rounds, self.round),
        )

    def pretrain(self, context: Context, state: State) -> State:
        """Let every client train alone."""
        start_models(context)
        self.learn(context, context.federation.clients, epochs=self.pretrain_epochs)
        return state

    def round(self, context: Context, state: State) -> State:
        """Weigh the participants, align their predictions, let them learn by themselves."""
        if context.round == 0 and not self.pretrain_epochs:
            start_models(context)
        chosen = chosen_clients(context)
        state, weights = self.reweight(context, state, chosen)
        self.align(context, state, weights)
        self.learn(context, chosen, epochs=context.config.train.epochs)
        return evaluate_models(context, state)

    # ---- step 2: client confidence re-weighting ------------------------------------------------

    def reweight(
        self, context: Context, state: State, chosen: Sequence[ClientId]
    ) -> tuple[State, dict[ClientId, float]]:
        """Return w of ``chosen``, from how their losses fall, and a state that remembers these."""
        losses = context.federation.map(self.measure, on=chosen, **local_arguments(context))
        context.sent("up", "loss", len(losses) * SCALAR_BYTES)
        before = state.values.get("own_loss", {})
        weights: dict[ClientId, float] = {}
        for members in members_by_group({k: state.groups[k] for k in chosen}):
            current = np.array([losses[k] for k in members])
            earlier = np.array([before.get(str(k), math.nan) for k in members])
            shares = confidence_weights(current, earlier, factor=self.confidence)
            weights |= dict(zip(members, shares.tolist(), strict=True))
        kept = {**before, **{str(k): loss for k, loss in losses.items()}}
        return replace(state, values={**state.values, "own_loss": kept}), weights

    def measure(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, float]:
        """Reply with the mean loss of the client's model on its samples."""
        import torch

        labels = current_labels(client, memory)
        if not len(labels):
            return memory, 0.0
        images = client.world.images(client.sample_ids)
        logits = client_logits(model_of(memory), images, {**arguments, "batch_statistics": True})
        with one_thread("torch"):
            given = torch.tensor(labels, dtype=torch.int64)
            losses = self.loss.per_sample(torch.tensor(logits), given)
        return memory, float(losses.double().mean().item())

    # ---- step 3: KL alignment on public images -------------------------------------------------

    def align(self, context: Context, state: State, weights: Mapping[ClientId, float]) -> None:
        """Align predictions (KL) in one pass over the public images (step 3).

        For every batch: publish outputs, mix the others', take a step.

        Only clients with a weight and at least one peer in their group take part. Batches are as
        equal as can be, so that no statistics of batch norm come from a single image.
        """
        groups = members_by_group({k: state.groups[k] for k in weights})
        groups = [members for members in groups if len(members) > 1]
        taking_part = sorted(k for members in groups for k in members)
        if not taking_part:
            return
        ids = context.clean[0]
        order = stream(context.config.seed, "public order", context.round).permutation(len(ids))
        batches = np.array_split(ids[order], math.ceil(len(ids) / self.public_batch))
        shared = local_arguments(context)
        outputs = context.federation.map(
            self.align_and_publish, on=taking_part, publish=batches[0], **shared
        )
        for batch, following in zip(batches, [*batches[1:], None], strict=True):
            each: dict[ClientId, dict[str, np.ndarray]] = {}
            for members in groups:
                stacked = np.stack([outputs[k] for k in members])
                mixed = others_mixture(stacked, np.array([weights[k] for k in members]))
                targets = mixed.astype(np.float32)
                each |= {k: {"targets": t} for k, t in zip(members, targets, strict=True)}
            context.sent("up", "predictions", sum(a.nbytes for a in outputs.values()))
            context.sent("down", "predictions", sum(a["targets"].nbytes for a in each.values()))
            outputs = context.federation.map(
                self.align_and_publish,
                on=taking_part,
                each=each,
                learn=batch,
                publish=following,
                **shared,
            )

    def align_and_publish(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, np.ndarray | None]:
        """Step towards ``targets`` on batch ``learn``; reply with outputs on batch ``publish``."""
        model, tree, outputs = arguments["model"], model_of(memory), None
        how = {"classes": arguments["classes"], "device": torch_device()}
        how["train_mode"] = not self.freeze_statistics
        with one_thread("torch"):
            if "learn" in arguments:
                images = client.world.images(arguments["learn"])
                tree, _ = aligned(model, tree, images, arguments["targets"], lr=self.lr, **how)
            if arguments["publish"] is not None:
                images = client.world.images(arguments["publish"])
                tree, outputs = published(model, tree, images, **how)
        return {**memory, **as_memory(tree)}, outputs

    # ---- step 4: local learning ----------------------------------------------------------------

    def learn(self, context: Context, clients: Sequence[ClientId], *, epochs: int) -> None:
        """Let ``clients`` train their own models on their own samples."""
        train = replace(self.local_training(context.config.train), epochs=epochs)
        shared = {**local_arguments(context), "train": train}
        context.record(loss=mean_loss(context.federation.map(self.fit, on=clients, **shared)))

    def local_training(self, train: TrainSettings) -> TrainSettings:
        """Return the train section, or RHFL's own optimiser in its place."""
        if self.local == "config":
            return train
        return replace(train, optimizer="adam", lr=self.lr, momentum=0.0, weight_decay=0.0)

    def fit(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, dict[str, float]]:
        """Train the client's model by symmetric cross-entropy: local learning (step 4)."""
        # Every client is a group of its own.
        alone = {"models": {client.id: model_of(memory)}, "group": client.id, "loss": self.loss}
        labels = current_labels(client, memory)
        tree, report = trained_model(client, labels, {**arguments, **alone})
        reply = {"loss": report.loss, "samples": report.samples}
        return {**memory, **as_memory(tree)}, reply


# ---- RHFL's mathematics. N clients, B images of a batch, C classes -----------------------------


def confidence_weights(losses: np.ndarray, previous: np.ndarray, *, factor: float) -> np.ndarray:
    """Return w (N,), the weight of what comes FROM each client (step 2).

    ``previous`` is nan for clients without an earlier loss: then q = 0.
    """
    count = len(losses)
    if count < 2:
        return np.zeros(count)
    share = np.full(count, 1.0 / (count - 1))
    is_known = ~np.isnan(previous)
    if not is_known.any():
        return share  # t = 0: w = 1/(N - 1)
    quality = np.where(is_known, previous - losses, 0.0) / np.maximum(losses, TINY)  # q_k
    # The released code divides by sum q, which may vanish or change sign.
    raw = share + factor * quality / (np.abs(quality).sum() + TINY)  # u = 1/(N-1) + eta q / sum |q|
    weights: np.ndarray = np.exp(raw - raw.max())  # w = softmax(u)
    return weights / weights.sum()


def others_mixture(probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return, for each of N clients, sum over the OTHERS of w_i p_i: (N, B, C) from (N, B, C).

    sum_i w_i KL(p_i || p) differs from the cross-entropy with this mixture by a constant.
    """
    weighted = weights[:, None, None] * probabilities
    mixture: np.ndarray = weighted.sum(axis=0) - weighted
    return mixture


def published(
    model: Model, tree: Tree, images: np.ndarray, *, classes: int, train_mode: bool, device: str
) -> tuple[Tree, np.ndarray]:
    """Return softmax outputs (B, C) on one batch, and the model with its statistics moved by it."""
    import torch

    module = module_for(model, image_shape_of(images), classes, device=device)
    load_tree(module, tree)
    module.train(train_mode)
    with seeded(0, device), torch.no_grad():
        batch = torch.tensor(images, dtype=torch.float32, device=device)
        outputs = torch.softmax(module(batch), dim=1).cpu().numpy()
    return to_tree(module), outputs


def aligned(
    model: Model,
    tree: Tree,
    images: np.ndarray,
    targets: np.ndarray,
    *,
    classes: int,
    lr: float,
    train_mode: bool,
    device: str,
) -> tuple[Tree, float]:
    """Return the model after one Adam step on -mean sum_c t_c log p_c, and that loss (step 3).

    The optimiser is new for every batch, as in the released code: a step has the size of lr. The
    statistics of batch norm stay: they were moved when the outputs on this batch were published.
    """
    import torch

    from raysim.models.optimizers import adam

    module = module_for(model, image_shape_of(images), classes, device=device)
    load_tree(module, tree)
    module.train(train_mode)
    parameters: list[torch.Tensor] = list(module.parameters())
    with seeded(0, device):
        batch = torch.tensor(images, dtype=torch.float32, device=device)
        target = torch.tensor(targets, dtype=torch.float32, device=device)
        loss = -(target * torch.log_softmax(module(batch), dim=1)).sum(dim=1).mean()
        adam(parameters, lr=lr, decay=0.0)(list(torch.autograd.grad(loss, parameters)))
    return {**to_tree(module), "buffers": tree["buffers"]}, float(loss.item())


# ---- models that stay with their clients -------------------------------------------------------


def start_models(context: Context) -> None:
    """Give every client its own copy of the same random weights."""
    config = context.config
    tree = initial_tree(config.model, context.image_shape, context.classes, config.seed)
    context.federation.map(keep_model_task, tree=context.federation.put(tree))


def evaluate_models(context: Context, state: State) -> State:
    """Record the accuracy of every client's own model; at the end hand the models out."""
    clients = context.federation.clients
    if is_due(context):
        tasks = context.test_classes()
        each = {k: {"test_classes": tasks[k]} for k in clients}
        shared = {**local_arguments(context), "top5": context.config.evaluate.top5}
        record_scores(context, context.federation.map(evaluate_model_task, each=each, **shared))
    if not context.last:
        return state
    sent = context.federation.keep(send_model_task, on=clients)
    return replace(state, models={f"client/{k}": handle for k, handle in sent.items()})


def keep_model_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, None]:
    """Keep the received model as the client's own."""
    return {**memory, **as_memory(arguments["tree"])}, None


@stateless
def evaluate_model_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """Reply with accuracy and loss of the client's model on the test images of its task."""
    images, labels = client.world.test_set(arguments["test_classes"])
    logits = client_logits(model_of(memory), images, arguments)
    return memory, logit_scores(logits, labels, arguments)


def send_model_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the client's model, for the result of the run."""
    # Not declared stateless: a deadline must not leave anyone's model out of the result.
    return memory, Contribution(model_of(memory), 1.0)


def model_of(memory: Tree) -> Tree:
    return {part: np.asarray(memory[f"model/{part}"]) for part in ("trainable", "buffers")}


def as_memory(tree: Tree) -> Tree:
    return {f"model/{part}": np.asarray(array) for part, array in tree.items()}


# ---- with FB-NLL's groups and label correction -------------------------------------------------


@METHODS.register("rhfl_fb_nll")
@settings
class RhflFbNll(Rhfl):
    """RHFL + FB-NLL: FB-NLL's groups and label correction, then RHFL inside the groups."""

    groups: GroupsSettings = GroupsSettings(kind="similarity")
    correction: CorrectionSettings = CorrectionSettings()
    correct_before: Literal["pretrain", "train"] = "train"  # ours: the paper does not say where
    """The stage in front of which labels are repaired."""

    @property
    def repair(self) -> Repair:
        return Repair(self.correct_before, self.correction)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a correction before a training alone that is off, too."""
        Rhfl.check(self, config, classes=classes, dimensions=dimensions)
        if self.correct_before == "pretrain" and not self.pretrain_epochs:
            raise ConfigError(
                "method.correct_before is pretrain, but method.pretrain_epochs is 0: there is no "
                "such stage; raise method.pretrain_epochs or set method.correct_before to train"
            )

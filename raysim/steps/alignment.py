"""Learning from each other's predictions on public images, without averaging weights (RHFL).

Every client owns its model; it lives in the client's memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysim.core.confidence import confidence_weights, others_mixture
from raysim.models.distillation import aligned, published
from raysim.models.params import initial_tree
from raysim.models.threads import one_thread, torch_device
from raysim.models.training import train_client
from raysim.protocols import Client, ClientId, Context, Contribution, State, Tree
from raysim.seeding import stream
from raysim.steps.evaluation import is_due, logit_scores, record_scores
from raysim.steps.group_training import local_arguments, mean_loss
from raysim.steps.local_training import client_logits, client_stream, current_labels
from raysim.steps.server import SCALAR_BYTES, members_by_group


def start_models(context: Context) -> None:
    """Give every client its own copy of the same random weights, before the first round."""
    config = context.config
    tree = initial_tree(config.model, context.image_shape, context.classes, config.seed)
    context.federation.map(keep_model_task, tree=context.federation.put(tree))


def confidence(
    context: Context, state: State, chosen: Sequence[ClientId], *, loss: Any, factor: float
) -> tuple[State, dict[ClientId, float]]:
    """Return the state that remembers losses, and w of ``chosen`` from how theirs fall (step 2)."""
    found = context.federation.map(own_loss_task, on=chosen, loss=loss, **_facts(context))
    context.sent("up", "loss", len(found) * SCALAR_BYTES)
    before = state.values.get("own_loss", {})
    weights: dict[ClientId, float] = {}
    for members in members_by_group({k: state.groups[k] for k in chosen}):
        losses = np.array([found[k] for k in members])
        earlier = np.array([before.get(str(k), math.nan) for k in members])
        own = confidence_weights(losses, earlier, factor=factor)
        weights |= dict(zip(members, own.tolist(), strict=True))
    kept = {**before, **{str(k): v for k, v in found.items()}}
    return replace(state, values={**state.values, "own_loss": kept}), weights


def align(
    context: Context,
    state: State,
    weights: Mapping[ClientId, float],
    *,
    lr: float,
    batch_size: int,
    freeze_statistics: bool,
) -> None:
    """Pass once over the public images (step 3): publish, mix the others', take a step.

    Takes part who has a weight and company in its group. Batches are as equal as can be, so that no
    statistics of batch norm come from a single image.
    """
    groups = {k: state.groups[k] for k in weights}
    members = [own for own in members_by_group(groups) if len(own) > 1]
    taking_part = sorted(k for own in members for k in own)
    if not taking_part:
        return
    ids = context.clean[0]
    order = stream(context.config.seed, "public order", context.round).permutation(len(ids))
    batches = np.array_split(ids[order], math.ceil(len(ids) / batch_size))
    shared = {**_facts(context), "lr": lr, "train_mode": not freeze_statistics}
    outputs = context.federation.map(align_task, on=taking_part, publish=batches[0], **shared)
    for number, batch in enumerate(batches):
        targets = _mixtures(members, outputs, weights)
        following = batches[number + 1] if number + 1 < len(batches) else None
        _count(context, outputs, targets)
        each = {k: {"targets": targets[k]} for k in taking_part}
        outputs = context.federation.map(
            align_task, on=taking_part, each=each, learn=batch, publish=following, **shared
        )


def learn(context: Context, chosen: Sequence[ClientId], **local: Any) -> None:
    """Let ``chosen`` train their own models on their own samples (step 4)."""
    shared = {**local_arguments(context), **local}
    context.record(loss=mean_loss(context.federation.map(learn_task, on=chosen, **shared)))


def evaluate_own(context: Context, state: State) -> State:
    """Record the accuracy of every client's own model; at the end hand the models out."""
    if is_due(context):
        tasks = context.test_classes()
        each = {k: {"test_classes": tasks[k]} for k in context.federation.clients}
        shared = {**_facts(context), "top5": context.config.evaluate.top5}
        scores = context.federation.map(evaluate_own_task, each=each, **shared)
        record_scores(context, scores)
    if not context.last:
        return state
    own = {k: k for k in context.federation.clients}
    sent = context.federation.reduce(send_model_task, groups=own)
    models = {f"client/{k}": result.mean for k, result in sent.groups.items()}
    return replace(state, models=models)


def _facts(context: Context) -> dict[str, Any]:
    config = context.config
    return {"model": config.model, "classes": context.classes, "kernel": config.train.kernel}


def _mixtures(
    members: list[list[ClientId]],
    outputs: Mapping[ClientId, np.ndarray],
    weights: Mapping[ClientId, float],
) -> dict[ClientId, np.ndarray]:
    found: dict[ClientId, np.ndarray] = {}
    for own in members:
        stacked = np.stack([outputs[k] for k in own])
        mixed = others_mixture(stacked, np.array([weights[k] for k in own]))
        found |= dict(zip(own, mixed.astype(np.float32), strict=True))
    return found


def _count(
    context: Context,
    outputs: Mapping[ClientId, np.ndarray],
    targets: Mapping[ClientId, np.ndarray],
) -> None:
    """Count softmax outputs up, the mixture of the others' down."""
    context.sent("up", "predictions", sum(a.nbytes for a in outputs.values()))
    context.sent("down", "predictions", sum(a.nbytes for a in targets.values()))


# ---- tasks -----------------------------------------------------------------------------------


def keep_model_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, None]:
    """Take a model as one's own."""
    return _with_model(memory, arguments["tree"]), None


def own_loss_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, float]:
    """Reply with the mean loss of the own model on the own samples."""
    import torch

    labels = current_labels(client, memory)
    if not len(labels):
        return memory, 0.0
    images = client.world.images(client.sample_ids)
    found = client_logits(_model(memory), images, {**arguments, "batch_statistics": True})
    with one_thread():
        given = torch.tensor(labels, dtype=torch.int64)
        values = arguments["loss"].per_sample(torch.tensor(found), given)
    return memory, float(values.double().mean().item())


def align_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray | None]:
    """Take a step towards ``targets`` on batch ``learn``, reply with outputs on ``publish``."""
    shared = {k: arguments[k] for k in ("classes", "train_mode")} | {"device": torch_device()}
    tree: Tree = _model(memory)
    outputs = None
    with one_thread():
        if arguments.get("learn") is not None:
            images = client.world.images(arguments["learn"])
            targets, lr = arguments["targets"], arguments["lr"]
            tree, _ = aligned(arguments["model"], tree, images, targets, lr=lr, **shared)
        if arguments["publish"] is not None:
            images = client.world.images(arguments["publish"])
            tree, outputs = published(arguments["model"], tree, images, **shared)
    return _with_model(memory, tree), outputs


def learn_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """Train the own model."""
    with one_thread():
        tree, report = train_client(
            arguments["model"],
            _model(memory),
            client.world.images(client.sample_ids),
            current_labels(client, memory),
            arguments["train"],
            rng=client_stream(arguments, client),
            classes=arguments["classes"],
            loss=arguments["loss"],
            device=torch_device(),
            black=client.world.black,
        )
    return _with_model(memory, tree), {"loss": report.loss, "samples": report.samples}


def evaluate_own_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """Reply with accuracy and loss of the own model on the test images of the own task."""
    images, labels = client.world.test_set(arguments["test_classes"])
    return memory, logit_scores(client_logits(_model(memory), images, arguments), labels, arguments)


def send_model_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the own model, for the result of the run."""
    return memory, Contribution(_model(memory), 1.0)


def _model(memory: Tree) -> dict[str, np.ndarray]:
    return {part: np.asarray(memory[f"model/{part}"]) for part in ("trainable", "buffers")}


def _with_model(memory: Tree, tree: Tree) -> dict[str, np.ndarray]:
    return {**memory, **{f"model/{part}": np.asarray(a) for part, a in tree.items()}}

"""Groups by loss: every client tries every model and joins the best (IFCA and IFCA-PFL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysim.core.association import (
    equal_sizes,
    fills_all,
    forced_groups,
    natural_groups,
)
from raysim.errors import ConfigError
from raysim.models.evaluation import sample_losses
from raysim.models.params import different_trees
from raysim.protocols import Client, ClientId, Context, Handle, State, Tree
from raysim.seeding import stream_seed
from raysim.steps.local_training import client_logits, current_labels
from raysim.steps.server import SCALAR_BYTES, group_model

TRIES = 200  # rccpfl_ifca.md section B


def check_groups(config: Any) -> None:
    """Refuse more groups than clients: one of them would stay empty."""
    groups, clients = config.data.partition.groups, config.data.partition.clients
    if groups > clients:
        raise ConfigError(
            f"data.partition.groups is {groups}, but data.partition.clients is {clients}; every "
            "group needs a client: raise data.partition.clients or lower data.partition.groups"
        )


def count_losses(
    context: Context, models: Mapping[str, Handle], clients: Sequence[ClientId]
) -> None:
    """Count all models down and M losses per client up: the server decides."""
    _count_models(context, models, clients)
    context.sent("up", "losses", len(clients) * len(models) * SCALAR_BYTES)


def count_choices(
    context: Context, models: Mapping[str, Handle], clients: Sequence[ClientId]
) -> None:
    """Count all models down and one number per client up: the client decides."""
    _count_models(context, models, clients)
    context.sent("up", "choice", len(clients) * SCALAR_BYTES)


Count = Callable[[Context, Mapping[str, Handle], Sequence[ClientId]], None]


def first_groups(
    context: Context, state: State, *, num_groups: int, smallest: int = 1, count: Count
) -> State:
    """Draw M models until each attracts ``smallest`` clients (Procedure 3), at most 200 times.

    Then the clients are dealt out in equal shares by loss, and the record says so.
    """
    clients = context.federation.clients
    for attempt in range(TRIES):
        models = _random_models(context, num_groups, attempt)
        losses = loss_matrix(context, models, clients, batch_statistics=True)
        count(context, models, clients)
        groups = natural_groups(losses)
        is_forced = not fills_all(groups, num_groups, smallest=smallest)
        if not is_forced:
            break
    else:
        groups = forced_groups(losses, equal_sizes(len(clients), num_groups))
    context.record(association={"tries": attempt + 1, "forced": is_forced})
    return joined(context, replace(state, models=models), clients, groups)


def joined(context: Context, state: State, clients: Sequence[ClientId], groups: Any) -> State:
    """Return the state with these clients in these groups, scored by the evaluator."""
    found = {**state.groups, **dict(zip(clients, np.asarray(groups).tolist(), strict=True))}
    context.observe_groups(found)
    return replace(state, groups=dict(sorted(found.items())))


def reassociated(context: Context, state: State, *, num_groups: int) -> State:
    """Let everyone join its best model; if a group would be empty, keep its size (Procedure 4)."""
    clients = context.federation.clients
    before = np.array([state.groups[k] for k in clients])
    models = group_models(state, num_groups)
    losses = loss_matrix(context, models, clients)
    count_losses(context, models, clients)
    groups = natural_groups(losses)
    is_forced = not fills_all(groups, num_groups)
    if is_forced:
        groups = forced_groups(losses, np.bincount(before, minlength=num_groups))
    changed = int((groups != before).sum())
    context.record(association={"changed": changed, "forced": is_forced})
    return joined(context, state, clients, groups)


def group_models(state: State, num_groups: int) -> dict[str, Handle]:
    """Return the models of all groups."""
    return {group_model(g): state.models[group_model(g)] for g in range(num_groups)}


def loss_matrix(
    context: Context,
    models: Mapping[str, Handle],
    clients: Sequence[ClientId],
    *,
    batch_statistics: bool = False,
) -> np.ndarray:
    """Return the mean loss (K, M) of every model on every client's own samples and labels."""
    config = context.config
    handles = [models[group_model(g)] for g in range(len(models))]
    replies = context.federation.map(
        losses_task,
        on=clients,
        models=handles,
        model=config.model,
        kernel=config.train.kernel,
        classes=context.classes,
        batch_statistics=batch_statistics,
    )
    return np.array([replies[k] for k in clients])


def losses_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, list[float]]:
    """Reply with F_k(w_m) for every received model: mean cross-entropy over all own samples."""
    labels = current_labels(client, memory)
    images = client.world.images(client.sample_ids)
    if not len(labels):
        return memory, [0.0] * len(arguments["models"])
    found = [client_logits(tree, images, arguments) for tree in arguments["models"]]
    return memory, [float(sample_losses(f, labels).mean()) for f in found]


def _count_models(
    context: Context, models: Mapping[str, Handle], clients: Sequence[ClientId]
) -> None:
    context.sent("down", "model", len(clients) * sum(h.nbytes for h in models.values()))


def _random_models(context: Context, num_groups: int, attempt: int) -> dict[str, Handle]:
    """Return M models with different random weights."""
    config = context.config
    seeds = [stream_seed(config.seed, "initial weights", attempt, g) for g in range(num_groups)]
    shape, classes = context.image_shape, context.classes
    trees = different_trees(config.model, shape, classes, seeds)
    return {group_model(g): context.federation.put(tree) for g, tree in enumerate(trees)}

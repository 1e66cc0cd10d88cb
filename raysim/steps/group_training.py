"""A round of training inside groups: local work, then one model per group.

FB-NLL Algorithm 1, lines 23-32; RCC-PFL Algorithm 1, lines 4-10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysim.models.params import initial_tree
from raysim.protocols import ClientId, Context, OwnModels, State, Task
from raysim.steps.evaluation import evaluate_clients, is_due, judge_labels
from raysim.steps.local_training import participants, train_task
from raysim.steps.server import SCALAR_BYTES, group_model, next_models


def train_round(context: Context, state: State) -> State:
    """Return the state after one round; a group without a participant keeps its model."""
    state = train_groups(context, state, chosen_clients(context))
    return evaluated(context, state)


def train_alone(context: Context, state: State) -> State:
    """Return the state after one round in which no model leaves its client (groups of one)."""
    state = train_groups(context, state, chosen_clients(context), counted=False)
    return evaluated(context, state)


def chosen_clients(context: Context, among: Sequence[ClientId] | None = None) -> list[ClientId]:
    """Return the clients that take part in this round, out of ``among`` (default all)."""
    clients = list(context.federation.clients if among is None else among)
    config = context.config
    role = context.stage
    return participants(clients, config.train, seed=config.seed, role=role, round_id=context.round)


def evaluated(context: Context, state: State) -> State:
    """Evaluate if this round is due for it; return the state."""
    if is_due(context):
        evaluate_clients(context, state)
    if context.last and context.config.evaluate.f_score and context.stage == "train":
        judge_labels(context, state)
    return state


def train_groups(
    context: Context,
    state: State,
    chosen: Sequence[ClientId],
    *,
    counted: bool = True,
    **local: Any,
) -> State:
    """Train the models of ``chosen``'s groups and merge them; ``local`` goes to the local step."""
    return train_groups_by(train_task, context, state, chosen, counted=counted, **local)[0]


def train_groups_by(
    task: Task,
    context: Context,
    state: State,
    chosen: Sequence[ClientId],
    *,
    counted: bool = True,
    each: Mapping[ClientId, Mapping[str, Any]] | None = None,
    **local: Any,
) -> tuple[State, Mapping[ClientId, Any]]:
    """Train by a method's own ``task`` and merge; return the state and what clients replied.

    FB-NLL Algorithm 1, lines 23-32; RCC-PFL Algorithm 1, lines 4-10.

    Replies carry ``loss`` and ``samples``, and may carry ``selected``: a mask of the samples that
    the client takes for rightly labelled, which the evaluator scores; None if it judged none.
    """
    state = state if state.models else with_initial(context, state)
    config = context.config
    groups = {k: state.groups[k] for k in chosen}
    handles = {g: state.models[group_model(g)] for g in sorted(set(groups.values()))}
    shared = {**local_arguments(context), **local}
    own = OwnModels(handles, groups)
    reduced = context.federation.reduce(task, groups=groups, each=each, models=own, **shared)
    # Line 30: summed in runtime/cohort.py, divided by core.aggregation.mean.
    means = {g: result.mean for g, result in reduced.groups.items()}
    new = next_models(context.federation, config.server, models=state.models, means=means)
    context.record(loss=mean_loss(reduced.replies))
    observe_selected(context, reduced.replies)
    if counted:
        context.sent("down", "model", sum(handles[g].nbytes for g in groups.values()))
        count_uploads(context, state, list(reduced.replies))
    return replace(state, models={**state.models, **new}), reduced.replies


def observe_selected(context: Context, replies: Mapping[ClientId, Any]) -> None:
    """Let the evaluator score the samples that clients judged clean, where they reply with them."""
    found = {k: reply.get("selected") for k, reply in replies.items()}
    masks = {k: mask for k, mask in found.items() if mask is not None}
    if masks:
        context.observe_selection(masks)


def count_uploads(context: Context, state: State, chosen: Sequence[ClientId]) -> None:
    """Count the models that ``chosen`` send after training, and FedNova's a_k with them."""
    sizes = [state.models[group_model(state.groups[k])].nbytes for k in chosen]
    context.sent("up", "model", sum(sizes))
    if context.config.server.optimizer == "fednova":
        context.sent("up", "effective steps", len(chosen) * SCALAR_BYTES)


def local_arguments(context: Context) -> dict[str, Any]:
    """Return what clients need besides the models, to train and to use them."""
    config = context.config
    return {
        "model": config.model,
        "train": config.train,
        "server": config.server,
        "kernel": config.train.kernel,
        "classes": context.classes,
        "image_shape": context.image_shape,
        "seed": config.seed,
        "where": context.where,
    }


def with_initial(context: Context, state: State) -> State:
    """Give every group the same random weights (FB-NLL Algorithm 1, lines 21-22)."""
    config = context.config
    tree = initial_tree(config.model, context.image_shape, context.classes, config.seed)
    handle = context.federation.put(tree)
    names = [group_model(g) for g in sorted(set(state.groups.values()))]
    return replace(state, models={**state.models, **dict.fromkeys(names, handle)})


def mean_loss(replies: Mapping[ClientId, Any]) -> float | None:
    """Return the mean training loss of the clients that had samples to train on."""
    losses = [reply["loss"] for reply in replies.values() if not math.isnan(reply["loss"])]
    return sum(losses) / len(losses) if losses else None

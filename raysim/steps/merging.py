"""A round of training inside groups.

Local work, then one mean per group (Algorithm 1, lines 23-32).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from raysim.models.params import initial_tree
from raysim.protocols import ClientId, Context, State
from raysim.settings import settings
from raysim.steps.evaluation import evaluate_clients, is_due
from raysim.steps.local import participants, train_task


@settings
class ServerSettings:
    """How the server turns a round's contributions into the next model."""

    optimizer: Literal["mean"] = "mean"
    weights: Literal["uniform", "samples"] = "uniform"  # Algorithm 1, line 30
    """uniform: every client counts the same; samples: by its number of samples."""


def group_model(group: int) -> str:
    """Return the name under which a group's model is stored."""
    return f"group/{group}"


def train_round(context: Context, state: State) -> State:
    """Return the state after one round; a group without a participant keeps its model."""
    state, nbytes = _train(context, state)
    context.sent("down", "model", nbytes)
    context.sent("up", "model", nbytes)
    return state


def train_alone(context: Context, state: State) -> State:
    """Return the state after one round in which no model leaves its client (groups of one)."""
    return _train(context, state)[0]


def _train(context: Context, state: State) -> tuple[State, int]:
    """Train, average per group, evaluate when due; also return the bytes of the models involved."""
    state = state if state.models else _initial(context, state)
    config = context.config
    chosen = participants(
        list(context.federation.clients), config.train, seed=config.seed, round_id=context.round
    )
    groups = {k: state.groups[k] for k in chosen}
    handles = {g: state.models[group_model(g)] for g in sorted(set(groups.values()))}
    reduced = context.federation.reduce(
        train_task,
        groups=groups,
        models=handles,
        model=config.model,
        train=config.train,
        weights=config.server.weights,
        classes=context.classes,
        image_shape=context.image_shape,
        seed=config.seed,
        round=context.round,
    )
    means = {group_model(g): result.mean for g, result in reduced.groups.items()}  # line 30
    state = replace(state, models={**state.models, **means})
    context.record(loss=_mean_loss(reduced.replies))
    if is_due(context):
        evaluate_clients(context, state)
    return state, sum(handles[g].nbytes for g in groups.values())


def _initial(context: Context, state: State) -> State:
    """Give every group the same random weights."""
    config = context.config
    tree = initial_tree(config.model, context.image_shape, context.classes, config.seed)
    handle = context.federation.put(tree)
    names = [group_model(g) for g in sorted(set(state.groups.values()))]
    return replace(state, models=dict.fromkeys(names, handle))


def _mean_loss(replies: Mapping[ClientId, Any]) -> float | None:
    losses = [reply["loss"] for reply in replies.values() if reply["samples"]]
    return sum(losses) / len(losses) if losses else None

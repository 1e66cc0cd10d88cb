"""Scoring clients on images of the server and dropping the worst (ClipFL)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysim.models.evaluation import score
from raysim.protocols import Client, ClientId, Context, Contribution, State, Tree
from raysim.steps.group_training import count_uploads, local_arguments, mean_loss, with_initial
from raysim.steps.local_training import client_logits, current_labels, trained_model, weight_of
from raysim.steps.server import contributed, group_model, members_by_group, next_models
from raysim.steps.validation import VALIDATION

Scores = Mapping[ClientId, Mapping[str, float]]


def score_round(
    context: Context, state: State, chosen: Sequence[ClientId], *, kept: int | None, **local: Any
) -> State:
    """Train ``chosen``, score their models, merge the best ``kept`` of each group (Phase I).

    Null: the better half. The others' noise candidacy scores grow by one. Scored on the server's
    clean images, unless the state holds others.
    """
    state = state if state.models else with_initial(context, state)
    groups = {k: state.groups[k] for k in chosen}
    handles = {g: state.models[group_model(g)] for g in sorted(set(groups.values()))}
    shared = {**local_arguments(context), "models": handles, **local}
    shared |= {"kernel": context.config.train.kernel, "clean": context.clean}
    shared |= {"validation": state.models[VALIDATION]} if VALIDATION in state.models else {}
    each = {k: {"group": g} for k, g in groups.items()}
    scores = context.federation.map(train_and_score_task, on=chosen, each=each, **shared)
    context.sent("down", "model", sum(handles[g].nbytes for g in groups.values()))
    count_uploads(context, state, chosen)
    best = {k for own in members_by_group(groups) for k in best_clients(scores, own, kept)}
    reduced = context.federation.reduce(
        send_trained_task, groups={k: groups[k] for k in sorted(best)}, **shared
    )
    means = {g: result.mean for g, result in reduced.groups.items()}
    new = next_models(context.federation, shared["server"], models=state.models, means=means)
    context.record(loss=mean_loss(scores))
    state = replace(state, models={**state.models, **new})
    return _counted(context, state, scores, best)


def best_clients(scores: Scores, members: Sequence[ClientId], kept: int | None) -> list[ClientId]:
    """Return the ``kept`` members (null: half) of highest validation accuracy.

    Ties go to the lower validation loss, then to the lower client (ours: the paper is silent).
    """
    count = math.ceil(len(members) / 2) if kept is None else kept

    def rank(k: ClientId) -> tuple[float, float, int]:
        return -scores[k]["accuracy"], scores[k]["validation_loss"], k

    return sorted(members, key=rank)[:count]


def prune(context: Context, state: State, *, rate: float, per_participation: bool) -> State:
    """Drop the floor(rate K) clients of highest score in each group, never all (Phase II)."""
    counts = state.values["candidacy"]
    survivors: list[ClientId] = []
    for members in members_by_group(state.groups):
        order = cleanest_first(state, members, per_participation=per_participation)
        dropped = min(math.floor(rate * len(order) + 1e-9), len(order) - 1)
        survivors += order[: len(order) - dropped]
    pruned = sorted(set(state.groups) - set(survivors))
    scores = {k: _rank(counts, k, per_participation)[0] for k in state.groups}
    context.observe_noisy(pruned, scores)
    return replace(state, values={**state.values, "survivors": sorted(survivors)})


def cleanest_first(
    state: State, members: Sequence[ClientId], *, per_participation: bool
) -> list[ClientId]:
    """Return the members by their noise candidacy score, lowest first."""
    counts = state.values["candidacy"]
    return sorted(members, key=lambda k: _rank(counts, k, per_participation))


def _rank(counts: Mapping[str, Any], k: ClientId, per_participation: bool) -> tuple[float, ...]:
    """Sort key, cleanest first; ties by higher mean validation accuracy, then lower client.

    Who never took part has score 0 and comes before all others that have it.
    """
    own = counts.get(str(k))
    if own is None:
        return 0.0, -math.inf, k
    candidacy = own["score"] / own["rounds"] if per_participation else own["score"]
    return candidacy, -own["accuracy"] / own["rounds"], k


def _counted(context: Context, state: State, scores: Scores, best: set[ClientId]) -> State:
    counts = dict(state.values.get("candidacy", {}))
    for k, found in scores.items():
        own = counts.get(str(k), {"score": 0, "rounds": 0, "accuracy": 0.0})
        counts[str(k)] = {
            "score": own["score"] + (k not in best),
            "rounds": own["rounds"] + 1,
            "accuracy": own["accuracy"] + found["accuracy"],
        }
    context.record(validation={str(k): found["accuracy"] for k, found in scores.items()})
    return replace(state, values={**state.values, "candidacy": counts})


def train_and_score_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """Train, keep the model for a while, reply with how it does on the server's images.

    The score is the server's work; it is done here because here the model is.
    """
    tree, report = _trained(client, memory, arguments)
    images, labels = _validation(client, arguments)
    found = score(client_logits(tree, images, arguments), labels)
    reply = {"loss": report.loss, "samples": report.samples}
    return memory, {**reply, "accuracy": found.accuracy, "validation_loss": found.loss}


def _validation(client: Client, arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    if "validation" in arguments:
        return arguments["validation"]["images"], arguments["validation"]["labels"]
    ids, labels = arguments["clean"]
    return client.world.images(ids), labels


def send_trained_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model that was scored; trained again if this process lost it."""
    tree, report = _trained(client, memory, arguments)
    client.scratch.pop("scored", None)
    received = arguments["models"][arguments["group"]]
    sent = contributed(
        arguments["server"],
        arguments["train"],
        received=received,
        trained=tree,
        steps=report.steps,
    )
    return memory, Contribution(sent, weight_of(arguments, report.samples))


def _trained(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    when = arguments["where"]
    kept = client.scratch.get("scored")
    if kept is None or kept[0] != when:
        kept = (when, trained_model(client, current_labels(client, memory), arguments))
        client.scratch["scored"] = kept
    tree, report = kept[1]
    return tree, report

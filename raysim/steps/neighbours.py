"""Samples judged by a client's own model and by those of reliable neighbours (FedRN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from raysim.core.reliability import ensemble, most_reliable, reliability
from raysim.core.selection import clean_posterior
from raysim.models.evaluation import sample_losses
from raysim.models.sessions import Session
from raysim.protocols import Client, ClientId, Context, Contribution, State, Tree
from raysim.seeding import stream
from raysim.steps.group_training import local_arguments, train_groups_by, with_initial
from raysim.steps.local_training import client_logits
from raysim.steps.server import SCALAR_BYTES, group_model
from raysim.steps.sessions import client_session, received_model, sent_model

THRESHOLD = 0.5
"""Of the probability of being clean."""


def neighbour_round(
    context: Context,
    state: State,
    chosen: Sequence[ClientId],
    *,
    each: Mapping[ClientId, Mapping[str, Any]],
    probe: str,
    tune: bool,
    server: Any,
) -> State:
    """Train ``chosen`` on what their judges select; keep their models, expertise and probes."""
    state = state if state.models else with_initial(context, state)
    shared = {"kernel": context.config.train.kernel, "probe": probe, "tune": tune}
    shared["server"] = server
    homes = {k: state.groups[k] for k in chosen}
    handles = {g: state.models[group_model(g)] for g in sorted(set(homes.values()))}
    state, replies = train_groups_by(judged_task, context, state, chosen, each=each, **shared)
    # The same upload once more, under the client's own name.
    kept = context.federation.reduce(
        send_kept_task,
        groups={k: k for k in replies},
        each={k: {**each.get(k, {}), "home": homes[k]} for k in replies},
        models=handles,
        **{**local_arguments(context), **shared},
    )
    models = {client_model(k): result.mean for k, result in kept.groups.items()}
    known = dict(state.values.get("neighbours", {}))
    for k, reply in replies.items():
        known[str(k)] = {"expertise": reply["expertise"], "probe": reply["probe"]}
    context.sent("up", "expertise", len(replies) * SCALAR_BYTES)
    context.sent("up", "probe", sum(len(r["probe"]) for r in replies.values()) * SCALAR_BYTES)
    values = {**state.values, "neighbours": known}
    return replace(state, models={**state.models, **models}, values=values)


def judges(
    context: Context,
    state: State,
    chosen: Sequence[ClientId],
    *,
    count: int,
    weight: float,
    choice: Literal["reliable", "random"],
) -> dict[ClientId, dict[str, Any]]:
    """Return for each client its own last model, its neighbours' models, and their scores.

    A client that never uploaded gets none of them: the received model judges alone.
    """
    known = state.values.get("neighbours", {})
    ids = sorted(int(k) for k in known)
    expertise = np.array([known[str(k)]["expertise"] for k in ids])
    probes = np.array([known[str(k)]["probe"] for k in ids])
    found: dict[ClientId, dict[str, Any]] = {}
    for k in chosen:
        if k not in ids:  # it has no model of its own yet: the received one judges alone
            found[k] = {"judges": [], "scores": [1.0]}
            continue
        own = ids.index(k)
        scores = reliability(expertise, probes, own, weight=weight)
        rows = most_reliable(scores, own, count)
        if choice == "random":
            others = np.delete(np.arange(len(ids)), own)
            rng = stream(context.config.seed, "neighbours", context.round, k)
            rows = rng.permutation(others)[:count]
        picked = [own, *rows.tolist()]
        models = [state.models[client_model(ids[row])] for row in picked]
        found[k] = {"judges": models, "scores": [float(scores[row]) for row in picked]}
        context.sent("down", "neighbour models", sum(model.nbytes for model in models[1:]))
    return found


def client_model(client: ClientId) -> str:
    """Return the name under which the server keeps a client's last upload."""
    return f"upload/{client}"


def judged_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Select by the judges (none: everything), train the received model, reply with it."""
    return memory, _trained(client, memory, arguments)


def send_kept_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model that was sent for the mean; trained again if this process lost it."""
    sent = _trained(client, memory, arguments)
    client.scratch.pop("judged", None)
    return memory, Contribution(sent.tree, 1.0)


def _trained(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> Contribution:
    when = arguments["where"]
    kept = client.scratch.get("judged")
    if kept is None or kept[0] != when:
        kept = (when, _train_judged(client, memory, arguments))
        client.scratch["judged"] = kept
    sent: Contribution = kept[1]
    return sent


def _train_judged(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> Contribution:
    received = received_model(arguments)
    with client_session(client, memory, arguments, trees=[received, received]) as own:
        judges = arguments.get("judges")
        selected = None if judges is None else _judged(own, arguments)
        own.descend(0, among=None if selected is None else np.flatnonzero(selected))
        tree = own.tree(0)
        return sent_model(
            own,
            tree=tree,
            selected=selected,
            expertise=_expertise(own, tree, arguments),
            probe=_probe(own, tree, arguments),
        )


def _judged(own: Session, arguments: Mapping[str, Any]) -> np.ndarray:
    """Return which samples the judges take for clean; all where that would be none."""
    mine, *others = arguments["judges"] or [received_model(arguments)]
    posterior = [_posterior(own, mine, arguments)]
    sure = np.flatnonzero(posterior[0] > THRESHOLD)
    sure = sure if len(sure) else np.arange(len(own.labels))  # S_aux
    for tree in others:
        own.load(1, tree)
        if arguments["tune"]:
            own.tune_head(1, among=sure)
        posterior.append(_posterior(own, own.tree(1), arguments))
    mask = ensemble(np.stack(posterior), np.array(arguments["scores"])) > THRESHOLD
    return mask if mask.any() else np.ones_like(mask)


def _posterior(own: Session, tree: Tree, arguments: Mapping[str, Any]) -> np.ndarray:
    return clean_posterior(sample_losses(_outputs(own, tree, arguments), own.labels))


def _outputs(own: Session, tree: Tree, arguments: Mapping[str, Any]) -> np.ndarray:
    """Return the logits of the client's own images, in batches as large as in training."""
    return client_logits(tree, own.images, {**arguments, "normed_rows": own.train.batch_size})


def _expertise(own: Session, tree: Tree, arguments: Mapping[str, Any]) -> float:
    """Return the accuracy on the client's own, partly wrong labels."""
    found = _outputs(own, tree, arguments).argmax(axis=1)
    return float(np.mean(found == own.labels)) if len(own.labels) else 0.5


def _probe(own: Session, tree: Tree, arguments: Mapping[str, Any]) -> list[float]:
    """Return the output on one image of Gaussian noise, the same for everyone."""
    image = stream(arguments["seed"], "probe").normal(size=(1, *own.images.shape[1:]))
    logits = client_logits(tree, image.astype(np.float32), arguments)[0].astype(np.float64)
    if arguments["probe"] == "softmax":
        logits = np.exp(logits - logits.max())
        logits /= logits.sum()
    return [float(value) for value in logits]

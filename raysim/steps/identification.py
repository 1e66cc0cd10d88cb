"""Finding noisy clients and their wrong labels by the outputs of local models (FedCorr)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.core.noise_detection import (
    confident_labels,
    doubtful,
    local_intrinsic_dimension,
    upper_component,
)
from raysim.models.evaluation import sample_losses
from raysim.protocols import Client, ClientId, Context, Contribution, State, Tree
from raysim.seeding import stream
from raysim.steps.group_training import count_uploads, local_arguments, mean_loss, with_initial
from raysim.steps.local_training import (
    client_logits,
    current_labels,
    participants,
    trained_model,
    weight_of,
)
from raysim.steps.server import (
    SCALAR_BYTES,
    contributed,
    group_model,
    members_by_group,
    next_models,
)

if TYPE_CHECKING:
    import torch

NORM_FLOOR = 1e-12


class PullToReceived:
    """strength * ||w - w_received||, the norm itself unless ``squared`` (FedCorr's code form)."""

    def __init__(self, strength: float, *, squared: bool) -> None:
        self._strength, self._squared = strength, squared
        self._received: list[torch.Tensor] = []

    def __call__(self, module: torch.nn.Module) -> torch.Tensor:
        """Return the term; the first call sees the received weights."""
        import torch

        own = list(module.parameters())
        self._received = self._received or [w.detach().clone() for w in own]
        pairs = zip(own, self._received, strict=True)
        total = torch.stack([((w - r) ** 2).sum() for w, r in pairs]).sum()
        return self._strength * (total if self._squared else (total + NORM_FLOOR).sqrt())


def sweep(context: Context, state: State, *, fraction: float, **local: Any) -> State:
    """Visit every client once, a ``fraction`` of its group at a time (stage 1, steps 1-4).

    With fraction 0 one client after another: the model goes from client to client.
    """
    state = state if state.models else with_initial(context, state)
    shared = {**local_arguments(context), **local, "kernel": context.config.train.kernel}
    levels = state.values.get("noise_level", {})
    replies: dict[ClientId, Any] = {}
    for chosen in _turns(context, state, fraction):
        groups = {k: state.groups[k] for k in chosen}
        handles = {g: state.models[group_model(g)] for g in sorted(set(groups.values()))}
        each = {k: {"noise_level": levels.get(str(k), 0.0)} for k in chosen}
        reduced = context.federation.reduce(
            identify_task, groups=groups, each=each, models=handles, **shared
        )
        means = {g: result.mean for g, result in reduced.groups.items()}
        new = next_models(context.federation, shared["server"], models=state.models, means=means)
        context.sent("down", "model", sum(handles[g].nbytes for g in groups.values()))
        count_uploads(context, state, chosen)
        state = replace(state, models={**state.models, **new})
        replies |= reduced.replies
    context.sent("up", "lid", len(replies) * SCALAR_BYTES)
    context.record(loss=mean_loss(replies))
    return _accumulated(state, {k: reply["lid"] for k, reply in replies.items()})


def _turns(context: Context, state: State, fraction: float) -> list[list[ClientId]]:
    """Return who trains when: each group in its own random order, all groups side by side."""
    turns: dict[int, list[ClientId]] = {}
    for g in sorted(set(state.groups.values())):
        own = [k for k, group in sorted(state.groups.items()) if group == g]
        rng = stream(context.config.seed, "sweep", context.round, g)
        order = [own[i] for i in rng.permutation(len(own))]
        size = max(_floor(fraction * len(own)), 1)
        for position, k in enumerate(order):
            turns.setdefault(position // size, []).append(k)
    return [sorted(turns[t]) for t in sorted(turns)]


def _accumulated(state: State, found: Mapping[ClientId, float]) -> State:
    before = state.values.get("lid", {})
    total = {str(k): before.get(str(k), 0.0) + lid for k, lid in found.items()}
    return replace(state, values={**state.values, "lid": total})


def noisy_clients(context: Context, state: State) -> State:
    """Split each group by its clients' summed LID, estimate the noise of the upper part."""
    lid = state.values["lid"]
    noisy: list[ClientId] = []
    for own in members_by_group(state.groups):
        upper = upper_component(np.array([lid[str(k)] for k in own]))
        noisy += [k for k, is_upper in zip(own, upper, strict=True) if is_upper]
    noisy.sort()
    found = context.federation.map(noise_level_task, on=noisy) if noisy else {}
    context.sent("up", "noise level", len(noisy) * SCALAR_BYTES)
    levels = {str(k): found.get(k, 0.0) for k in sorted(state.groups)}
    context.observe_noisy(
        noisy,
        {k: lid[str(k)] for k in state.groups},
        {k: levels[str(k)] for k in state.groups},
    )
    context.record(noise_level=levels)
    return replace(state, values={**state.values, "noise_level": levels, "noisy": noisy})


def relabel(context: Context, state: State, *, ratio: float | None, threshold: float) -> State:
    """Let noisy clients replace labels by what their group's model is sure of, and score that.

    ``ratio``: among the n_k mu_k ratio largest losses; null: among all samples.
    """
    noisy, levels = state.values["noisy"], state.values["noise_level"]
    handles = {g: state.models[group_model(g)] for g in {state.groups[k] for k in noisy}}
    each = {k: {"group": state.groups[k], "noise_level": levels[str(k)]} for k in noisy}
    if noisy:
        context.federation.map(
            relabel_by_model_task,
            on=noisy,
            each=each,
            models=handles,
            ratio=ratio,
            threshold=threshold,
            model=context.config.model,
            kernel=context.config.train.kernel,
            classes=context.classes,
        )
        sizes = [handles[state.groups[k]].nbytes for k in noisy]
        context.sent("down", "model to relabel by", sum(sizes))
    context.observe_labels(context.federation.map(labels_task))
    return state


def clean_clients(state: State, threshold: float) -> list[ClientId]:
    """Return clients of estimated noise up to ``threshold``, in every group at least one.

    A group without any gives its ceil(K / 10) cleanest (fedcorr.md, paper vs code 7).
    """
    levels, found = state.values["noise_level"], []
    for own in members_by_group(state.groups):
        clean = [k for k in own if levels[str(k)] <= threshold]
        by_noise = sorted(own, key=lambda k: (levels[str(k)], k))
        found += clean or by_noise[: math.ceil(len(own) / 10)]
    return sorted(found)


def clean_participants(context: Context, state: State, threshold: float) -> list[ClientId]:
    """Return who trains in a round of stage 2: min(C K, clean clients) of the clean ones."""
    clean = clean_clients(state, threshold)
    config = context.config
    wanted = config.train.participation * len(context.federation.clients) / len(clean)
    train = replace(config.train, participation=min(wanted, 1.0))
    role = context.stage
    return participants(clean, train, seed=config.seed, role=role, round_id=context.round)


def _floor(share: float) -> int:
    return math.floor(share + 1e-9)  # 200 * 0.29 * 0.5 is 28.999... in binary


# ---- tasks -----------------------------------------------------------------------------------


def identify_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Train, then look at the own model's outputs on the own samples (steps 2-4)."""
    labels = current_labels(client, memory)
    strength = arguments["pull"] * arguments["noise_level"]
    pull = {"regulariser": PullToReceived(strength, squared=arguments["squared"])}
    own = {**arguments, **(pull if strength else {})}
    tree, report = trained_model(client, labels, own)
    found = client_logits(tree, client.world.images(client.sample_ids), arguments)
    probabilities = softmax(found)
    outputs = np.log(probabilities) if not arguments["double_softmax"] else probabilities
    losses = sample_losses(outputs, labels).astype(np.float32)
    lid = local_intrinsic_dimension(probabilities, arguments["neighbours"])
    server, train = arguments["server"], arguments["train"]
    received = arguments["models"][arguments["group"]]
    sent = contributed(server, train, received=received, trained=tree, steps=report.steps)
    reply = {"loss": report.loss, "samples": report.samples, "lid": lid}
    weight = weight_of(arguments, len(labels))
    return {**memory, "losses": losses}, Contribution(sent, weight, reply)


def noise_level_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, float]:
    """Reply with mu_k, the share of own losses in the upper of two Gaussians (step 6)."""
    upper = upper_component(memory["losses"])
    return memory, float(upper.mean()) if len(upper) else 0.0


def relabel_by_model_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, int]:
    """Replace doubtful labels by confident predictions of the group's model (step 7)."""
    labels = current_labels(client, memory)
    images = client.world.images(client.sample_ids)
    found = client_logits(arguments["models"][arguments["group"]], images, arguments)
    candidates = np.arange(len(labels))
    if arguments["ratio"] is not None:
        count = _floor(len(labels) * arguments["noise_level"] * arguments["ratio"])
        candidates = doubtful(np.asarray(memory["losses"]), count)
    new = confident_labels(softmax(found), labels, candidates, arguments["threshold"])
    return {**memory, "labels": new}, int((new != labels).sum())


def labels_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray]:
    """Reply with the labels a client trains on now (for the evaluator, not the protocol)."""
    return memory, current_labels(client, memory)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of each row, float64; never exactly zero."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-np.inf)
    exponents = np.exp(shifted)
    probabilities: np.ndarray = exponents / exponents.sum(axis=1, keepdims=True)
    return np.maximum(probabilities, np.finfo(np.float64).tiny)

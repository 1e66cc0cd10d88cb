"""IFCA-PFL and IFCA: groups by training loss, revised every round.

IFCA-PFL is FB-NLL's Algorithm 2 with Procedures 3 and 4 (Ali and Arafa 2026), whose lines are cited
here; RCC-PFL (Ali and Arafa 2025) has it as Algorithm 2 with Procedure 2. IFCA is Ghosh et al.
(2020), model averaging variant; raysim/docs/sheets/ifca.md.

Deviations from the papers:
- after 200 draws of initial models that leave a group empty, clients are dealt out in equal shares
  (the papers repeat without end);
- batch norm of a fresh model has no running statistics worth using, so fresh models are compared by
  those of the batch; where few take part, a model may still be untrained in round 1 and is then
  compared by its running statistics all the same;
- RCC-PFL's fallback names no group sizes; FB-NLL's rule is used for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from raysim.errors import ConfigError
from raysim.methods.method import METHODS, Method
from raysim.models.evaluation import sample_losses
from raysim.models.params import different_trees
from raysim.protocols import Client, ClientId, Context, Handle, Stage, State, Tree, stateless
from raysim.seeding import stream_seed
from raysim.settings import In, settings
from raysim.steps.evaluation import is_due
from raysim.steps.group_training import chosen_clients, count_uploads, evaluated, train_groups
from raysim.steps.local_training import client_logits, current_labels
from raysim.steps.server import SCALAR_BYTES, group_model

DRAWS = 200  # ours
"""How often initial models are drawn before clients are dealt out instead."""


def more_groups_than_clients(config: Any, title: str) -> None:
    """Refuse more groups than clients: one of them would stay empty."""
    groups, clients = config.data.partition.groups, config.data.partition.clients
    if groups > clients:
        raise ConfigError(
            f"data.partition.groups is {groups}, but data.partition.clients is {clients}; every "
            "group needs a client: raise data.partition.clients or lower data.partition.groups"
        )


@METHODS.register("ifca_pfl")
@settings
class IfcaPfl(Method):
    """IFCA-PFL (Ali and Arafa): groups by loss after every round, none ever empty."""

    freeze_after: Annotated[int | None, In("[1, inf)", do="try 5")] = None
    """Stop revising groups after this many rounds without a change; RCC-PFL allows it without a
    number, FB-NLL has none."""
    title: ClassVar = "IFCA-PFL"
    refuses: ClassVar = (more_groups_than_clients,)

    def grouping_stage(self, config: Any) -> Stage:
        """Return Procedure 3 (Algorithm 2, line 2)."""
        count = config.data.partition.groups

        def start(context: Context, state: State) -> State:
            return first_groups(context, state, num_groups=count, count=count_losses)

        return Stage("group", 1, start)

    def round(self, context: Context, state: State) -> State:
        """Train inside groups, then revise them (Algorithm 2, lines 5-15).

        RCC-PFL Algorithm 2, lines 5-10.
        """
        chosen = chosen_clients(context)
        count_uploads(context, state, chosen)
        state = train_groups(context, state, chosen, counted=False)
        quiet = state.values.get("quiet_rounds", 0)
        if self.freeze_after is not None and quiet >= self.freeze_after:
            context.observe_groups(state.groups)
            sizes = [state.models[group_model(g)].nbytes for g in state.groups.values()]
            context.sent("down", "model", sum(sizes))  # instead of all M models
            return evaluated(context, state)
        new = reassociated(context, state, num_groups=context.config.data.partition.groups)
        quiet = quiet + 1 if new.groups == state.groups else 0
        return evaluated(context, replace(new, values={**new.values, "quiet_rounds": quiet}))


@METHODS.register("ifca")
@settings
class Ifca(Method):
    """IFCA (Ghosh et al. 2020): participants join their best model, then train it."""

    smallest_share: Annotated[float, In("[0, 1)", do="try 0.1")] = 0.1  # released code, p = 4
    """Initial models are drawn again until each attracts this share of the clients; 0.35 for two
    groups."""
    lr_decay: Annotated[float, In("(0, 1]")] = 0.99  # released code
    """The learning rate shrinks by this factor every round."""
    title: ClassVar = "IFCA"
    refuses: ClassVar = (more_groups_than_clients,)

    def grouping_stage(self, config: Any) -> Stage:
        """Return initial models that all attract clients."""
        count, clients = config.data.partition.groups, config.data.partition.clients
        smallest = max(min(math.ceil(self.smallest_share * clients), clients // count), 1)

        def start(context: Context, state: State) -> State:
            return first_groups(
                context, state, num_groups=count, smallest=smallest, count=count_choices
            )

        return Stage("group", 1, start)

    def round(self, context: Context, state: State) -> State:
        """Let the participants choose their model, then train it."""
        config, count = context.config, context.config.data.partition.groups
        chosen = chosen_clients(context)
        # Running statistics of untrained batch norm say nothing.
        state = _choose(context, state, chosen, count, fresh=context.round == 0)
        count_choices(context, group_models(state, count), chosen)
        count_uploads(context, state, chosen)
        train = replace(config.train, lr=config.train.lr * self.lr_decay**context.round)
        state = train_groups(context, state, chosen, counted=False, train=train)
        if is_due(context):  # who did not take part is evaluated with its best model too
            state = _choose(context, state, list(context.federation.clients), count)
        return evaluated(context, state)


def _choose(
    context: Context, state: State, clients: list[ClientId], count: int, *, fresh: bool = False
) -> State:
    losses = loss_matrix(context, group_models(state, count), clients, batch_statistics=fresh)
    return joined(context, state, clients, natural_groups(losses))


# ---- initial models and groups (Procedure 3) ---------------------------------------------------

Count = Callable[[Context, Mapping[str, Handle], Sequence[ClientId]], None]


def first_groups(
    context: Context, state: State, *, num_groups: int, smallest: int = 1, count: Count
) -> State:
    """Draw M models until each attracts ``smallest`` clients (Procedure 3), at most 200 times.

    Lines 3-11; RCC-PFL Procedure 2, lines 15-16. After 200 draws the clients are dealt out in equal
    shares by loss, and the record says so.
    """
    clients, config = context.federation.clients, context.config
    for attempt in range(DRAWS):
        # M models with different random weights.
        seeds = [stream_seed(config.seed, "initial weights", attempt, g) for g in range(num_groups)]
        trees = different_trees(config.model, context.image_shape, context.classes, seeds)
        models = {group_model(g): context.federation.put(tree) for g, tree in enumerate(trees)}
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


# ---- revised groups (Procedure 4) --------------------------------------------------------------


def reassociated(context: Context, state: State, *, num_groups: int) -> State:
    """Let everyone join its best model; if a group would be empty, keep all sizes (Procedure 4).

    Lines 9-28; RCC-PFL Procedure 2, lines 1-18.
    """
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


def joined(context: Context, state: State, clients: Sequence[ClientId], groups: Any) -> State:
    """Return the state with these clients in these groups, scored by the evaluator."""
    known = {**state.groups, **dict(zip(clients, np.asarray(groups).tolist(), strict=True))}
    context.observe_groups(known)
    return replace(state, groups=dict(sorted(known.items())))


def group_models(state: State, num_groups: int) -> dict[str, Handle]:
    """Return the models of all groups."""
    return {group_model(g): state.models[group_model(g)] for g in range(num_groups)}


def natural_groups(losses: np.ndarray) -> np.ndarray:
    """Return argmin_m of losses (K, M), the lowest m in a tie (Procedure 4, lines 11-14)."""
    groups: np.ndarray = np.argmin(losses, axis=1)
    return groups


def fills_all(groups: np.ndarray, num_groups: int, *, smallest: int = 1) -> bool:
    """Return whether all groups have ``smallest`` clients (Procedure 4, lines 16-18)."""
    return bool(np.bincount(groups, minlength=num_groups).min() >= smallest)


def forced_groups(losses: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return groups of the given sizes: for m = 1..M the N_m nearest free clients.

    Procedure 4, lines 19-28. Nearest is smallest loss, in a tie the lowest client. ``sizes`` (M,)
    must add up to K, so that everyone is assigned once.
    """
    if int(np.sum(sizes)) != len(losses):
        raise ValueError(f"group sizes must add up to {len(losses)} clients, got {sizes}")
    groups = np.full(len(losses), -1)
    for group, size in enumerate(sizes):
        free = np.flatnonzero(groups < 0)
        order = np.argsort(losses[free, group], kind="stable")
        groups[free[order[: int(size)]]] = group
    return groups


def equal_sizes(num_clients: int, num_groups: int) -> np.ndarray:
    """Return floor(K / M) for each group, one more for the first K mod M."""
    sizes = np.full(num_groups, num_clients // num_groups)
    sizes[: num_clients % num_groups] += 1
    return sizes


# ---- the losses of all models at all clients ---------------------------------------------------


def loss_matrix(
    context: Context,
    models: Mapping[str, Handle],
    clients: Sequence[ClientId],
    *,
    batch_statistics: bool = False,
) -> np.ndarray:
    """Return every model's mean loss on every client's samples (K, M) (Procedure 4, lines 3-8)."""
    config = context.config
    replies = context.federation.map(
        losses_task,
        on=clients,
        models=[models[group_model(g)] for g in range(len(models))],
        model=config.model,
        kernel=config.train.kernel,
        classes=context.classes,
        batch_statistics=batch_statistics,
    )
    return np.array([replies[k] for k in clients])


@stateless
def losses_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, list[float]]:
    """Reply with F_k(w_m) for every received model: mean cross-entropy over all own samples."""
    labels = current_labels(client, memory)
    images = client.world.images(client.sample_ids)
    if not len(labels):
        return memory, [0.0] * len(arguments["models"])
    outputs = [client_logits(tree, images, arguments) for tree in arguments["models"]]
    return memory, [float(sample_losses(logits, labels).mean()) for logits in outputs]


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


def _count_models(
    context: Context, models: Mapping[str, Handle], clients: Sequence[ClientId]
) -> None:
    context.sent("down", "model", len(clients) * sum(h.nbytes for h in models.values()))

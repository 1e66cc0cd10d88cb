"""Two networks that travel together and pick samples for each other (Co-teaching, DivideMix)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from raysim.core.selection import small_loss
from raysim.models.params import different_trees
from raysim.models.sessions import Session, gradients
from raysim.models.training import local_optimizer
from raysim.protocols import Client, Context, Contribution, State, Tree
from raysim.seeding import stream_seed
from raysim.steps.server import group_model
from raysim.steps.sessions import client_session, received_model, sent_model

SECOND = "second/"
"""What the second network's arrays are called by; evaluation reads the first one's."""
DIRECTIONS = ((0, 1), (1, 0))
"""Each network and its peer."""


def with_peers(context: Context, state: State) -> State:
    """Give every group the same two networks, from different random weights.

    With model.weights only what the file lacks differs.
    """
    config, shape = context.config, context.image_shape
    seeds = (config.seed, stream_seed(config.seed, "second network"))
    first, second = different_trees(config.model, shape, context.classes, seeds)
    handle = context.federation.put(_pair(first, second))
    names = [group_model(g) for g in sorted(set(state.groups.values()))]
    return replace(state, models={**state.models, **dict.fromkeys(names, handle)})


@contextmanager
def peer_session(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> Iterator[Session]:
    """Open the two received networks and the client's samples."""
    tree = received_model(arguments)
    second = {part: tree[SECOND + part] for part in ("trainable", "buffers")}
    with client_session(client, memory, arguments, trees=[tree, second]) as own:
        yield own


def sent_peers(own: Session, **reply: Any) -> Contribution:
    """Return what goes to the server: both networks."""
    return sent_model(own, tree=_pair(own.tree(0), own.tree(1)), **reply)


def _pair(first: Tree, second: Tree) -> dict[str, np.ndarray]:
    return {**first, **{SECOND + part: array for part, array in second.items()}}


def teach(own: Session, *, rate: float) -> np.ndarray:
    """Train each network on the samples of smallest loss for the other one (Algorithm 1).

    ``rate`` is the share that is left out; where that leaves nothing, no step is made. Return which
    samples network 0 kept in the last epoch.
    """
    from torch.nn.functional import cross_entropy

    kept = np.zeros(len(own.labels), dtype=bool)
    updates = [local_optimizer(own.weights(i), own.train) for i in (0, 1)]
    for epoch, batch in own.batches():
        outputs = [network(batch.images) for network in own.networks]
        losses = [cross_entropy(found, batch.labels, reduction="none") for found in outputs]
        masks = [small_loss(values.detach().cpu().numpy(), rate) for values in losses]
        for me, peer in DIRECTIONS:
            if masks[peer].any():
                fit = losses[me][masks[peer]].mean()
                updates[me](gradients(fit, own.weights(me)))
        noted = losses[0][masks[1]] if masks[1].any() else losses[0]
        own.note(epoch, len(batch.index), noted.mean())
        kept[batch.index] = masks[0]
    return kept


def teach_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with both networks after they taught each other."""
    with peer_session(client, memory, arguments) as own:
        kept = teach(own, rate=arguments["rate"])
        selected = kept if arguments["rate"] else None
        return memory, sent_peers(own, selected=selected)

"""Co-teaching in a federation: two networks select small-loss samples for each other.

Han, Yao, Yu, Niu, Xu, Hu, Tsang and Sugiyama, NeurIPS 2018, as the baseline that FedRN (Kim et al.
2022) makes of it: both networks are sent, trained and averaged, and the first
one is evaluated (raysim/docs/sheets/co_teaching.md).

Deviations from the paper, all as in FedRN's comparison:
- the forget rate is the same in every setting: the true noise rate is not known to a method;
- it grows with rounds, not epochs, since a client is not there in every round;
- the optimiser is that of the train section, as for every method.
Deviation from the released code: it divides the mean loss by the number of kept samples once more,
which only changes the scale of a step; ours is the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from raysim.core.selection import small_loss
from raysim.methods.method import METHODS, Method, other_training, share_of_rounds
from raysim.models.params import different_trees
from raysim.models.sessions import Session, gradients
from raysim.models.training import local_optimizer
from raysim.protocols import Context, Contribution, State, Tree, Where
from raysim.seeding import stream_seed
from raysim.settings import In, settings
from raysim.steps.server import group_model
from raysim.steps.sessions import sent_model


@METHODS.register("co_teaching")
@settings
class CoTeaching(Method):
    """Co-teaching (Han et al. 2018): two networks keep small-loss samples for each other."""

    forget_rate: Annotated[float, In("[0, 1)", do="try the share of wrong labels")] = 0.2
    """tau, the share of a batch that is left out in the end; 0.2 for every noise, as FedRN."""
    ramp_rounds: Annotated[int | None, In("[0, inf)", do="try null")] = None
    """T_k, rounds over which the rate grows from 0; null: a fifth of train.rounds (100 of 500)."""
    title: ClassVar[str] = "Co-teaching"
    refuses: ClassVar = (other_training,)
    counted_by: ClassVar = "samples"

    def round(self, context: Context, state: State) -> State:
        return Method.round(self, context, with_pair(context, state))

    def networks(self, received: Tree, memory: Tree, sent: Mapping[str, Any]) -> Sequence[Tree]:
        return pair_in(received)

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Let the two networks teach each other; reply with both."""
        rate = self.rate(where.round, share_of_rounds(session.train.rounds, self.ramp_rounds, 5))
        kept = teach(session, rate=rate)
        return memory, sent_pair(session, selected=kept if rate else None)

    def rate(self, round_id: int, ramp: int) -> float:
        """Return eps_t = tau min(t / T_k, 1), rounds counted from 0."""
        return self.forget_rate * (min(round_id / ramp, 1.0) if ramp else 1.0)


def teach(session: Session, *, rate: float) -> np.ndarray:
    """Train each network on the small-loss samples of the other one ("Local training").

    ``rate`` is the share that is left out; where that leaves nothing, no step is made. Return which
    samples the first network kept in the last epoch.
    """
    from torch.nn.functional import cross_entropy

    kept = np.zeros(len(session.labels), dtype=bool)
    updates = [local_optimizer(session.weights(i), session.train) for i in (0, 1)]
    for epoch, batch in session.batches():
        outputs = [network(batch.images) for network in session.networks]
        losses = [cross_entropy(logits, batch.labels, reduction="none") for logits in outputs]
        # R(t) = floor((1 - eps_t) B) samples each
        masks = [small_loss(values.detach().cpu().numpy(), rate) for values in losses]
        for me, peer in PEERS:
            if masks[peer].any():
                loss = losses[me][masks[peer]].mean()
                updates[me](gradients(loss, session.weights(me)))
        noted = losses[0][masks[1]] if masks[1].any() else losses[0]
        session.note(epoch, len(batch.index), noted.mean())
        kept[batch.index] = masks[0]
    return kept


# ---- two networks in one tree, for DivideMix too -------------------------------------------------

SECOND = "second/"
"""Prefix of the second network's arrays; evaluation reads the first one's."""
PEERS = ((0, 1), (1, 0))
"""Each network and its peer."""


def with_pair(context: Context, state: State) -> State:
    """Give every group without models the same two networks, from different random weights.

    With model.weights only what the file lacks differs.
    """
    if state.models:
        return state
    config, shape = context.config, context.image_shape
    seeds = (config.seed, stream_seed(config.seed, "second network"))
    first, second = different_trees(config.model, shape, context.classes, seeds)
    handle = context.federation.put(_pair(first, second))
    names = [group_model(g) for g in sorted(set(state.groups.values()))]
    return replace(state, models={**state.models, **dict.fromkeys(names, handle)})


def pair_in(received: Tree) -> tuple[Tree, Tree]:
    """Return the weights of both networks."""
    return received, {part: received[SECOND + part] for part in ("trainable", "buffers")}


def sent_pair(session: Session, *, selected: np.ndarray | None) -> Contribution:
    """Return what goes to the server: both networks."""
    return sent_model(session, tree=_pair(session.tree(0), session.tree(1)), selected=selected)


def _pair(first: Tree, second: Tree) -> dict[str, np.ndarray]:
    return {**first, **{SECOND + part: array for part, array in second.items()}}

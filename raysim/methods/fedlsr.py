"""FedLSR: predictions of two views are mixed, sharpened and held together (Jiang et al. 2022).

The loss is the paper's; ``parity: code`` is the released one, which feeds the mixed probabilities
into a softmax once more and takes the entropy of a softmax of a softmax.
Its logarithm has no floor, under which a sure network would not learn from a label it holds for
wrong.
Deviation from the released code: colours are changed relative to an image's own range, since
clients do not know how images were normalised (models/views.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from raysim.methods import METHODS
from raysim.methods.centralised import baseline_round, refuse_other_training
from raysim.methods.clustered import clustered_stages, one_group, share_of_rounds
from raysim.models.views import TwoViewLoss, train_two_views
from raysim.protocols import Client, Context, Contribution, Stage, State, Tree
from raysim.settings import check, settings
from raysim.steps.sessions import client_session, sent_model


@METHODS.register("fedlsr")
@settings
class FedLsr:
    """FedLSR (Jiang et al. 2022): sharpened predictions of two views, no label is judged."""

    consistency: float = 0.4  # the authors' notebook; ClipFL's study: 0.25
    """gamma, of the divergence between the views."""
    warmup_rounds: int | None = None
    """T_w, rounds over which gamma grows from 0; null: a fifth of train.rounds. ClipFL's study: 40
    of 120."""
    entropy: float = 0.6  # the authors' notebook
    """lambda_e, of the predictions' entropy."""
    parity: Literal["paper", "code"] = "paper"
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("consistency", "entropy"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do="try 0.4 and 0.6")
        ok = self.warmup_rounds is None or self.warmup_rounds >= 0
        rule = "must not be negative, or null"
        check(ok, "warmup_rounds", rule, got=self.warmup_rounds, do="try null")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse training that does not fit."""
        refuse_other_training(config, "FedLSR")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then training."""
        return clustered_stages(config, group=one_group, train=self._round)

    def loss(self, round_id: int, config: Any) -> TwoViewLoss:
        """Return the loss of a round, counted from 0."""
        ramp = share_of_rounds(config, self.warmup_rounds, 5)
        grown = min(round_id / ramp, 1.0) if ramp else 1.0
        return TwoViewLoss(
            consistency=self.consistency * grown,
            entropy=self.entropy,
            literal=self.parity == "code",
        )

    def _round(self, context: Context, state: State) -> State:
        loss = self.loss(context.round, context.config)
        return baseline_round(two_view_task, context, state, views=loss)


def two_view_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after training on both views."""
    with client_session(client, memory, arguments) as own:
        train_two_views(own, arguments["views"])
        return memory, sent_model(own)

"""FedRN: train on samples that reliable neighbours judge to be clean (Kim et al. 2022, Alg. 1).

Deviations from the paper: the client's own judge is its own last local model (the released code;
line 13 is ambiguous); a client that never uploaded is nobody's neighbour and judges with the
received model alone; similarity and expertise are scaled over the clients that have uploaded.
From the released code: samples are judged, and expertise is measured, without augmentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from raysim.methods import METHODS
from raysim.methods.centralised import refuse_other_training
from raysim.methods.clustered import one_group, refuse_short, share_of_rounds
from raysim.protocols import ClientId, Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.group_training import chosen_clients, evaluated
from raysim.steps.neighbours import judges, neighbour_round


@METHODS.register("fedrn")
@settings
class FedRn:
    """FedRN (Kim et al. 2022): neighbours' models help to select clean samples."""

    neighbours: int = 2
    """k."""
    expertise: float = 0.6  # run script; 0.5 is the code's default
    """alpha, share of the neighbours' expertise in their reliability; the rest is similarity."""
    warmup_rounds: int | None = None
    """Rounds of plain FedAvg first; null: a fifth of train.rounds (100 of 500)."""
    choice: Literal["reliable", "random"] = "reliable"
    """Random neighbours are the paper's ablation."""
    tune: bool = True
    """Fine-tune the neighbours' heads before they judge; false is the paper's ablation."""
    probe: Literal["softmax", "logits"] = "softmax"  # the released code compares logits
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        ok = self.neighbours >= 0
        check(ok, "neighbours", "must not be negative", got=self.neighbours, do="try 2")
        ok = 0 <= self.expertise <= 1
        check(ok, "expertise", "must be in [0, 1]", got=self.expertise, do="try 0.6")
        ok = self.warmup_rounds is None or self.warmup_rounds >= 1
        do = "neighbours are known after a round"
        check(ok, "warmup_rounds", "must be at least 1, or null", got=self.warmup_rounds, do=do)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse too few rounds for two stages, and training that does not fit."""
        refuse_other_training(config, "FedRN")
        refuse_short(config, self._warmup(config) + 1, "FedRN's warm-up and rounds")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return FedAvg that gets to know the clients, then rounds with neighbours."""
        warmup = self._warmup(config)
        return (
            Stage("group", 1, one_group),
            Stage("warmup", warmup, self._warm),
            Stage("train", config.train.rounds - warmup, self._train),
        )

    def _warmup(self, config: Any) -> int:
        return share_of_rounds(config, self.warmup_rounds, 5)

    def _warm(self, context: Context, state: State) -> State:
        return self._round(context, state, judged=False)

    def _train(self, context: Context, state: State) -> State:
        return self._round(context, state, judged=True)

    def _round(self, context: Context, state: State, *, judged: bool) -> State:
        chosen = chosen_clients(context)
        each: Mapping[ClientId, Mapping[str, Any]] = {}
        if judged:
            each = judges(
                context,
                state,
                chosen,
                count=self.neighbours,
                weight=self.expertise,
                choice=self.choice,
            )
        server = replace(context.config.server, weights="samples")
        state = neighbour_round(
            context, state, chosen, each=each, probe=self.probe, tune=self.tune, server=server
        )
        return evaluated(context, state)

"""ClipFL: prune the clients whose models are seldom among the best (Morafah et al. 2025, Alg. 1).

Also inside groups, as FB-NLL's tables use it, and after FB-NLL's label correction.

Deviations from the paper:
- Phase I merges the best m clients only (sections 4.1-4.2 and Fig. 3; line 13 writes all);
- m is half of a group's participants, Phase I a quarter of the rounds, unless set (FB-NLL: 20 of
  80 rounds, m not given; ClipFL's own study: m = 5, 80 of 120);
- the loss is the run's cross-entropy unless set; ClipFL's own study smooths labels by 0.1 at
  temperature 10, which divides every step by ten (FB-NLL names no loss);
- ties of the noise candidacy score go to the lower mean validation accuracy (the paper is silent);
- synthetic validation images come from a file (``validation.kind: file``): the paper's diffusion
  model is not part of raysim, and ``generated`` is only a Gaussian per class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.methods.clustered import (
    GroupsSettings,
    InGroups,
    needs_clean_images,
    refuse_short,
    share_of_rounds,
    with_correction,
)
from raysim.models.losses import PLAIN, SmoothedCrossEntropy
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.correction import CorrectionSettings
from raysim.steps.group_training import chosen_clients, evaluated, train_groups
from raysim.steps.local_training import num_participants
from raysim.steps.pruning import cleanest_first, prune, score_round
from raysim.steps.server import members_by_group
from raysim.steps.validation import ValidationSettings, with_validation, without_validation


@METHODS.register("clipfl")
@settings
class ClipFl(InGroups):
    """ClipFL (Morafah et al. 2025): score clients on clean images, prune the worst, go on."""

    score_rounds: int | None = None
    """T_pre, rounds of Phase I out of train.rounds; null: a quarter."""
    kept: int | None = None
    """m, clients merged per group and round of Phase I; null: the better half."""
    prune_rate: float = 0.5
    """p, share of each group that is dropped."""
    post_fraction: float = 1.0  # FB-NLL's wording allows 0.5 too (errata entry 6)
    """Share of the survivors that train in Phase III."""
    per_participation: bool = False
    """Divide scores by the rounds a client took part in (ours; the paper counts)."""
    weights: Literal["samples", "uniform"] = "samples"
    """How clients count in a mean."""
    loss: SmoothedCrossEntropy = PLAIN
    validation: ValidationSettings = ValidationSettings()

    def __post_init__(self) -> None:
        ok = self.score_rounds is None or self.score_rounds >= 1
        check(ok, "score_rounds", "must be at least 1, or null", got=self.score_rounds)
        check(self.kept is None or self.kept >= 1, "kept", "must be at least 1", got=self.kept)
        ok = 0 <= self.prune_rate < 1
        do = "1 would prune everyone: leave at least some clients to train on, e.g. 0.5"
        check(ok, "prune_rate", "must be in [0, 1)", got=self.prune_rate, do=do)
        ok = 0 < self.post_fraction <= 1
        check(ok, "post_fraction", "must be in (0, 1]", got=self.post_fraction, do="try 1.0")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a server without clean images, and too few rounds for two phases."""
        if self.validation.kind != "file":
            needs_clean_images(config, "ClipFL", "scores every model on the server's clean images")
        self.validation.check(classes)
        self.groups.check(config, dimensions)
        refuse_short(config, self._scored(config) + 1, "ClipFL's Phases I and III")
        clients = config.data.partition.clients
        taking_part = num_participants(clients, config.train.participation)
        if self.prune_rate and self.kept is not None and self.kept >= taking_part:
            raise ConfigError(
                f"method.kept is {self.kept}, but {taking_part} of {clients} clients take part in "
                "a round: nobody would ever be scored down; lower method.kept, or leave it out for "
                "the better half"
            )

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return Phase I, which ends with Phase II, and Phase III."""
        scored = self._scored(config)
        return (
            self.groups.stage(),
            Stage("score", scored, self._score),
            Stage("train", config.train.rounds - scored, self._train),
        )

    def _scored(self, config: Any) -> int:
        return share_of_rounds(config, self.score_rounds, 4)

    def _score(self, context: Context, state: State) -> State:
        chosen = chosen_clients(context)
        state = with_validation(context, state, self.validation)
        state = score_round(context, state, chosen, kept=self.kept, **self._local(context))
        if context.last:
            state = prune(
                context,
                without_validation(state),
                rate=self.prune_rate,
                per_participation=self.per_participation,
            )
        return evaluated(context, state)

    def _train(self, context: Context, state: State) -> State:
        """Ordinary rounds among the survivors, the cleanest of them if not all train."""
        allowed = []
        for own in members_by_group({k: state.groups[k] for k in state.values["survivors"]}):
            order = cleanest_first(state, own, per_participation=self.per_participation)
            allowed += order[: math.ceil(self.post_fraction * len(own))]
        chosen = chosen_clients(context, sorted(allowed))
        return evaluated(context, train_groups(context, state, chosen, **self._local(context)))

    def _local(self, context: Context) -> dict[str, Any]:
        """Return the weights and the loss; none where it is plain cross-entropy."""
        server = replace(context.config.server, weights=self.weights)
        return {"server": server} if self.loss == PLAIN else {"server": server, "loss": self.loss}


@METHODS.register("clipfl_fb_nll")
@settings
class ClipFlFbNll(ClipFl):
    """ClipFL + FB-NLL: FB-NLL's groups and label correction, then ClipFL inside the groups."""

    groups: GroupsSettings = GroupsSettings(kind="similarity")
    correction: CorrectionSettings = CorrectionSettings()
    correct_before: Literal["score", "train"] = "score"  # ours: the paper does not say where
    """The stage in front of which labels are repaired."""

    @property
    def uses(self) -> tuple[str, ...]:
        """Those of the grouping, and the features of the correction."""
        return (*self.groups.uses, "correction")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse what ClipFL or the correction refuses."""
        ClipFl.check(self, config, classes=classes, dimensions=dimensions)
        self.correction.check(config, dimensions["correction"])

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return ClipFL's stages with the correction among them."""
        return with_correction(ClipFl.stages(self, config), self.correct_before, self.correction)

"""FedCorr: find noisy clients, repair, fine-tune on clean ones, train on all (Xu et al. 2022).

Also inside groups, as FB-NLL's tables use it, and with FB-NLL's label correction between stages.

Deviations from the paper:
- the proximal term is the norm itself, as in the released code, not its square (``squared``);
- losses are true cross-entropies; the released code takes softmax outputs for logits
  (``double_softmax``);
- LID, losses and confidences are computed on images as they are, not augmented;
- a sweep over all clients counts as one round of train.rounds (``sweep_rounds``; FB-NLL: K);
- local training is that of the train section (``local``; FB-NLL states both, errata entry 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.methods.clustered import (
    GroupsSettings,
    InGroups,
    refuse_short,
    share_of_rounds,
    with_correction,
)
from raysim.models.losses import PLAIN, SmoothedCrossEntropy
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.correction import CorrectionSettings
from raysim.steps.group_training import chosen_clients, evaluated, train_groups
from raysim.steps.identification import clean_participants, noisy_clients, relabel, sweep

ORIGINAL: dict[str, Any] = {
    "optimizer": "sgd",
    "lr": 0.03,
    "momentum": 0.5,
    "weight_decay": 0.0,
    "batch_size": 10,
    "epochs": 5,
}
"""Local training of FedCorr's CIFAR-10 runs."""


@METHODS.register("fedcorr")
@settings
class FedCorr(InGroups):
    """FedCorr (Xu et al. 2022): noisy clients by LID, labels by confidence, three stages."""

    iterations: int = 2  # FB-NLL; FedCorr's own: 5 on CIFAR-10
    """T1, sweeps of stage 1."""
    sweep_rounds: int = 1
    """Rounds of train.rounds that a sweep counts as."""
    finetune_rounds: int | None = None
    """T2, rounds of stage 2; null: one in eight of train.rounds (FB-NLL: 10 of 80)."""
    sweep_fraction: float = 0.0
    """Share of a group that trains at a time in stage 1; 0: one client after another."""
    relabel_ratio: float = 0.5
    """pi, share of the estimated wrong labels that stage 1 may replace."""
    confidence: float = 0.5
    """theta, probability above which a predicted label is taken."""
    clean_level: float = 0.1
    """kappa, estimated noise up to which a client counts as clean."""
    neighbours: int = 20
    """k of the local intrinsic dimension."""
    proximal: float = 5.0
    """beta, strength of the pull to the received model, times the estimated noise; stage 1."""
    squared: bool = False
    double_softmax: bool = False
    mixup: float = 1.0
    """a of Beta(a, a); 0: off, as in FedFixer's runs."""
    weights: Literal["samples", "uniform"] = "samples"
    """How clients count in a mean."""
    loss: SmoothedCrossEntropy = PLAIN
    """Cross-entropy; ClipFL's study may have smoothed labels by 0.1 (errata entry 11)."""
    local: Literal["config", "original"] = "config"
    """config: the train section; original: SGD, lr 0.03, momentum 0.5, batch 10, 5 epochs."""

    def __post_init__(self) -> None:
        for name in ("iterations", "sweep_rounds"):
            value = getattr(self, name)
            check(value >= 1, name, "must be at least 1", got=value, do="try 1")
        got = self.neighbours
        check(got >= 2, "neighbours", "must be at least 2", got=got, do="20 is FedCorr's")
        ok = self.finetune_rounds is None or self.finetune_rounds >= 1
        check(ok, "finetune_rounds", "must be at least 1, or null", got=self.finetune_rounds)
        for name in ("relabel_ratio", "confidence", "clean_level", "sweep_fraction"):
            value = getattr(self, name)
            check(0 <= value <= 1, name, "must be in [0, 1]", got=value)
        for name in ("proximal", "mixup"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a budget that leaves nothing for stage 3, and FedNova beside a pull."""
        self.groups.check(config, dimensions)
        # Of one client at a time FedNova's step is its model, however many steps it counts.
        if config.server.optimizer == "fednova" and self.proximal and self.sweep_fraction:
            raise ConfigError(
                f"server.optimizer is fednova and method.proximal is {self.proximal:g}; its count "
                "of local steps holds without a proximal term: set method.proximal to 0, or "
                "method.sweep_fraction to 0"
            )
        needed = self.iterations * self.sweep_rounds + self._finetune(config) + 1
        refuse_short(config, needed, "FedCorr's three stages")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return stages 1, 2 and 3."""
        finetune = self._finetune(config)
        usual = config.train.rounds - self.iterations * self.sweep_rounds - finetune
        return (
            self.groups.stage(),
            Stage("identify", self.iterations, self._identify),
            Stage("finetune", finetune, self._clean),
            Stage("train", usual, self._usual),
        )

    def _finetune(self, config: Any) -> int:
        return share_of_rounds(config, self.finetune_rounds, 8)

    def _identify(self, context: Context, state: State) -> State:
        """One iteration of stage 1."""
        state = sweep(
            context,
            state,
            fraction=self.sweep_fraction,
            pull=self.proximal,
            squared=self.squared,
            neighbours=self.neighbours,
            double_softmax=self.double_softmax,
            **self._local(context),
        )
        state = noisy_clients(context, state)
        state = relabel(context, state, ratio=self.relabel_ratio, threshold=self.confidence)
        return evaluated(context, state)

    def _clean(self, context: Context, state: State) -> State:
        """Run a round of stage 2; the last one ends with relabelling all confident samples."""
        chosen = clean_participants(context, state, self.clean_level)
        state = train_groups(context, state, chosen, **self._local(context))
        if context.last:
            state = relabel(context, state, ratio=None, threshold=self.confidence)
        return evaluated(context, state)

    def _usual(self, context: Context, state: State) -> State:
        chosen = chosen_clients(context)
        return evaluated(context, train_groups(context, state, chosen, **self._local(context)))

    def _local(self, context: Context) -> dict[str, Any]:
        config = context.config
        how = ORIGINAL if self.local == "original" else {}
        own = {} if self.loss == PLAIN else {"loss": self.loss}
        return {
            "train": replace(config.train, mixup=self.mixup, **how),
            "server": replace(config.server, weights=self.weights),
            **own,
        }


@METHODS.register("fedcorr_fb_nll")
@settings
class FedCorrFbNll(FedCorr):
    """FedCorr + FB-NLL: FB-NLL's groups, and its label correction between FedCorr's stages."""

    groups: GroupsSettings = GroupsSettings(kind="similarity")
    correction: CorrectionSettings = CorrectionSettings()
    integration: Literal["start", "stage1", "stage2"] = "stage1"  # errata entry 7
    """Repair labels before stage 1, after it (the printed tables), or after stage 2."""

    @property
    def uses(self) -> tuple[str, ...]:
        """Those of the grouping, and the features of the correction."""
        return (*self.groups.uses, "correction")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse what FedCorr or the correction refuses."""
        FedCorr.check(self, config, classes=classes, dimensions=dimensions)
        self.correction.check(config, dimensions["correction"])

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return FedCorr's stages with the correction among them."""
        before = {"start": "identify", "stage1": "finetune", "stage2": "train"}[self.integration]
        return with_correction(FedCorr.stages(self, config), before, self.correction)

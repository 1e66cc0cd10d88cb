"""RHFL: clients with their own models learn from each other's predictions (Fang and Ye 2022).

Also inside groups, as FB-NLL's tables use it, and after FB-NLL's label correction. The public
images are the server's clean ones without their labels (FB-NLL).

Deviations from the paper:
- all clients have the same network and start from the same weights (FB-NLL: homogeneous models);
- no pre-training, as in FB-NLL (``pretrain_epochs``; RHFL's own: 40);
- confidences are normalised by sum |q|, since sum q may vanish (RHFL+ does so too);
- the loss that measures confidence is computed on images as they are, not augmented;
- accuracy is measured after a round, as for all methods, not before it.
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
    needs_clean_images,
    refuse_server_optimizer,
    with_correction,
)
from raysim.models.losses import SymmetricCrossEntropy
from raysim.models.training import TrainSettings
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.alignment import align, confidence, evaluate_own, learn, start_models
from raysim.steps.correction import CorrectionSettings
from raysim.steps.group_training import chosen_clients


@METHODS.register("rhfl")
@settings
class Rhfl(InGroups):
    """RHFL (Fang and Ye 2022): align predictions on public images, learn with a robust loss."""

    confidence: float = 0.5
    """eta, how much a falling loss raises a client's weight; 0: all alike."""
    loss: SymmetricCrossEntropy = SymmetricCrossEntropy()
    lr: float = 0.001
    """Of the steps on public images and, with ``local: original``, on own samples."""
    local: Literal["original", "config"] = "original"
    """original: Adam with ``lr``, no decay; config: the optimiser of the train section."""
    public_batch: int = 256
    pretrain_epochs: int = 0
    """Epochs on own samples before the first round."""
    freeze_statistics: bool = False
    """Keep batch norm's running statistics out of the public images."""

    def __post_init__(self) -> None:
        check(self.lr > 0, "lr", "must be above 0", got=self.lr, do="try 0.001")
        check(self.confidence >= 0, "confidence", "must not be negative", got=self.confidence)
        check(self.public_batch >= 1, "public_batch", "must be at least 1", got=self.public_batch)
        ok = self.pretrain_epochs >= 0
        check(ok, "pretrain_epochs", "must not be negative", got=self.pretrain_epochs)

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a run without public images, and server optimisers: no model is averaged."""
        needs_clean_images(config, "RHFL", "aligns predictions on public images held there")
        refuse_server_optimizer(config, "RHFL", "averages no models")
        self.groups.check(config, dimensions)

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return the grouping, the training alone where there is one, and the rounds."""
        alone = (Stage("pretrain", 1, self._pretrain),) if self.pretrain_epochs else ()
        return (self.groups.stage(), *alone, Stage("train", config.train.rounds, self._round))

    def _round(self, context: Context, state: State) -> State:
        train = self._train(context.config.train)
        if context.round == 0 and not self.pretrain_epochs:
            start_models(context)
        chosen = chosen_clients(context)
        state, weights = confidence(context, state, chosen, loss=self.loss, factor=self.confidence)
        align(
            context,
            state,
            weights,
            lr=self.lr,
            batch_size=self.public_batch,
            freeze_statistics=self.freeze_statistics,
        )
        learn(context, chosen, train=train, loss=self.loss)
        return evaluate_own(context, state)

    def _pretrain(self, context: Context, state: State) -> State:
        """Let every client train alone."""
        start_models(context)
        train = replace(self._train(context.config.train), epochs=self.pretrain_epochs)
        learn(context, context.federation.clients, train=train, loss=self.loss)
        return state

    def _train(self, train: TrainSettings) -> TrainSettings:
        if self.local == "config":
            return train
        return replace(train, optimizer="adam", lr=self.lr, momentum=0.0, weight_decay=0.0)


@METHODS.register("rhfl_fb_nll")
@settings
class RhflFbNll(Rhfl):
    """RHFL + FB-NLL: FB-NLL's groups and label correction, then RHFL inside the groups."""

    groups: GroupsSettings = GroupsSettings(kind="similarity")
    correction: CorrectionSettings = CorrectionSettings()
    correct_before: Literal["pretrain", "train"] = "train"  # ours: the paper does not say where
    """The stage in front of which labels are repaired."""

    @property
    def uses(self) -> tuple[str, ...]:
        """Those of the grouping, and the features of the correction."""
        return (*self.groups.uses, "correction")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse what RHFL or the correction refuses."""
        Rhfl.check(self, config, classes=classes, dimensions=dimensions)
        self.correction.check(config, dimensions["correction"])
        if self.correct_before == "pretrain" and not self.pretrain_epochs:
            raise ConfigError(
                "method.correct_before is pretrain, but method.pretrain_epochs is 0: there is no "
                "such stage; raise method.pretrain_epochs or set method.correct_before to train"
            )

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return the grouping, the correction and RHFL's rounds."""
        return with_correction(Rhfl.stages(self, config), self.correct_before, self.correction)

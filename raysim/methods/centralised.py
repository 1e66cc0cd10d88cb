"""What the centralised methods of FedRN's comparison share (Kim et al. 2022, section 5.1).

FedAvg with warm-up rounds, clients weighted by their samples; what a client learns about its
samples stays with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from raysim.errors import ConfigError
from raysim.methods.clustered import (
    one_group,
    refuse_server_optimizer,
    refuse_short,
    share_of_rounds,
)
from raysim.protocols import Context, Stage, State, Task
from raysim.settings import check, settings
from raysim.steps.group_training import chosen_clients, evaluated, train_groups_by


@settings
class Centralised(ABC):
    """A stage that warms up, and one in which labels are doubted."""

    warmup_rounds: int | None = None
    """Rounds that trust every label; null: a fifth of train.rounds (FedRN: 100 of 500)."""
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        ok = self.warmup_rounds is None or self.warmup_rounds >= 0
        rule = "must not be negative, or null"
        check(ok, "warmup_rounds", rule, got=self.warmup_rounds, do="try null")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse too few rounds, and training that does not fit."""
        name = type(self).__name__
        refuse_short(config, self._warmup(config) + 1, f"{name}'s warm-up and rounds")
        refuse_other_training(config, name)

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, the warm-up and the rounds after it."""
        warmup = self._warmup(config)
        return (
            Stage("group", 1, one_group),
            *([Stage("warmup", warmup, self._warm)] if warmup else []),
            Stage("train", config.train.rounds - warmup, self._train),
        )

    def _warmup(self, config: Any) -> int:
        return share_of_rounds(config, self.warmup_rounds, 5)

    @abstractmethod
    def _warm(self, context: Context, state: State) -> State:
        """Run a round that trusts every label."""

    @abstractmethod
    def _train(self, context: Context, state: State) -> State:
        """Run a round in which labels are doubted."""


def baseline_round(task: Task, context: Context, state: State, **local: Any) -> State:
    """Return the state after a round of FedAvg by a method's own ``task``."""
    server = replace(context.config.server, weights="samples")
    chosen = chosen_clients(context)
    state, _ = train_groups_by(task, context, state, chosen, server=server, **local)
    return evaluated(context, state)


def refuse_other_training(config: Any, method: str) -> None:
    """Refuse settings that these methods' own local training and plain means leave out."""
    if config.train.mixup:
        raise ConfigError(
            f"train.mixup is {config.train.mixup:g}, but {method} judges samples one by one; set "
            "train.mixup to 0"
        )
    refuse_server_optimizer(config, method, "sends its models as they are")


def refuse_other_steps(config: Any, method: str) -> None:
    """Refuse local optimisers that a method's own plain steps would silently leave out."""
    train = config.train
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "proximal": 0.0}
    for name, wanted in plain.items():
        if (got := getattr(train, name)) != wanted:
            raise ConfigError(
                f"train.{name} is {got}, but {method} takes plain steps of its own; set "
                f"train.{name} to {wanted}"
            )

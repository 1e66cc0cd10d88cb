"""CORES2 in a federation: two baselines of FedFixer (Ji et al. 2024; Cheng et al. 2021).

Deviations, as in FedFixer's released code: the prior is uniform, beta grows over the first rounds
and divides every step by 1 + beta, the network that sieves has a learning rate of its own, no
consistency training follows. Private networks start from the first global model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from raysim.methods import METHODS
from raysim.methods.centralised import (
    baseline_round,
    refuse_other_steps,
    refuse_other_training,
)
from raysim.methods.clustered import clustered_stages, one_group
from raysim.protocols import Client, Context, Contribution, Stage, State, Tree
from raysim.settings import check, settings
from raysim.steps.dual import DualStep, train_dual, train_sifted
from raysim.steps.group_training import with_initial
from raysim.steps.server import group_model
from raysim.steps.sessions import client_session, received_model, sent_model

START = "start/0"
"""Name of the stored first model."""


@METHODS.register("cores2_global")
@settings
class GlobalCores2:
    """Global+CORES2 (Cheng et al. 2021): the global model sieves its own samples."""

    warmup: int = 10
    """T_s: selection starts after this round, counted from 0."""
    confidence: float = 2.0
    """Largest beta."""
    personal_lr: float = 1.0  # CIFAR-10; 0.5 for MNIST
    """Learning rate of the network that sieves, as a multiple of train.lr."""
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("warmup", "confidence"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do="try 10 and 2")
        ok = self.personal_lr > 0
        check(ok, "personal_lr", "must be above 0", got=self.personal_lr, do="1.0 is train.lr")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse training that its own steps would leave out."""
        refuse_other_training(config, "CORES2")
        refuse_other_steps(config, "CORES2")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then training."""
        return clustered_stages(config, group=one_group, train=self._round)

    def _round(self, context: Context, state: State) -> State:
        return baseline_round(sieve_task, context, state, step=self._step())

    def _step(self) -> DualStep:
        return DualStep(
            warmup=self.warmup,
            confidence=self.confidence,
            personal_lr=self.personal_lr,
            is_dual=False,
        )


@METHODS.register("cores2_local")
@settings
class LocalCores2(GlobalCores2):
    """Local+CORES2 (Cheng et al. 2021): a private model sieves for the global one."""

    def _round(self, context: Context, state: State) -> State:
        if START not in state.models:
            first = with_initial(context, replace(state, models={})).models[group_model(0)]
            state = replace(state, models={START: first, group_model(0): first, **state.models})
        start = state.models[START]  # no message: clients draw it themselves, by the common seed
        return baseline_round(private_sieve_task, context, state, step=self._step(), start=start)


def sieve_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after training on the samples it selects."""
    with client_session(client, memory, arguments) as own:
        _, selected = train_dual(own, arguments["step"], round_id=arguments["where"].round)
        return memory, sent_model(own, selected=selected)


def private_sieve_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after training on what the private one selects; keep that one."""
    received, start = received_model(arguments), arguments["start"]
    kept = {part: memory.get(f"private/{part}", start[part]) for part in received}
    with client_session(client, memory, arguments, trees=[received, kept]) as own:
        selected = train_sifted(own, arguments["step"], round_id=arguments["where"].round)
        private = {f"private/{part}": array for part, array in own.tree(1).items()}
        return {**memory, **private}, sent_model(own, selected=selected)

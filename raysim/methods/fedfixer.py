"""FedFixer: a global and a personal model pick clean samples for each other (Ji et al. 2024).

Deviations from the paper, each as in the authors' released code, which gives the printed numbers
(``parity: paper`` is the printed algorithm, errata entry 9):
- beta grows from 0 over the first rounds, and every step is divided by 1 + beta;
- the personal model makes five steps per batch, with a weight decay of 0.001;
- the global model's own step uses the personal learning rate, and its gradient is the one before
  the pull towards the personal model;
- the prior of the confidence term is uniform;
- batch norm of the global model sees every batch once per inner step; its statistics are moved
  that often, the network runs once.
A round in which nobody selects a sample keeps the model (the code would divide by zero).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from raysim.methods import METHODS
from raysim.methods.centralised import refuse_other_steps, refuse_other_training
from raysim.methods.clustered import clustered_stages, one_group
from raysim.protocols import Client, Context, Contribution, Stage, State, Tree
from raysim.settings import check, settings
from raysim.steps.dual import DualStep, train_dual
from raysim.steps.group_training import chosen_clients, evaluated, train_groups_by
from raysim.steps.sessions import client_session, received_model, sent_model


@METHODS.register("fedfixer")
@settings
class FedFixer:
    """FedFixer (Ji et al. 2024): two models per client select clean samples for each other."""

    warmup: int = 10
    """T_s: selection starts after this round, counted from 0."""
    distance: float = 15.0
    """lambda, the pull between the two models."""
    confidence: float = 2.0
    """Largest beta; 2 is meant for hundreds of rounds, try 0.5 for short runs."""
    personal_lr: float = 1.0  # CIFAR-10; 0.5 for MNIST
    """zeta as a multiple of train.lr."""
    inner_steps: int = 5  # released code
    """Steps of the personal model per batch."""
    without: Literal["nothing", "distance", "confidence", "alternation", "personal"] = "nothing"
    """Ablations: no pull (the personal model is kept), plain cross-entropy, every model on its own
    selection, or no personal model."""
    parity: Literal["code", "paper"] = "code"
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check(self.warmup >= 0, "warmup", "must not be negative", got=self.warmup)
        for name in ("distance", "confidence"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do="try 15 and 2")
        ok = self.personal_lr > 0
        check(ok, "personal_lr", "must be above 0", got=self.personal_lr, do="1.0 is train.lr")
        ok = self.inner_steps >= 1
        check(ok, "inner_steps", "must be at least 1", got=self.inner_steps, do="try 5")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse training that its own steps would leave out."""
        refuse_other_training(config, "FedFixer")
        refuse_other_steps(config, "FedFixer")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, then rounds of dual training."""
        return clustered_stages(config, group=one_group, train=self._round)

    def _round(self, context: Context, state: State) -> State:
        how = replace(context.config.server, weights="samples")
        chosen = chosen_clients(context)
        trained, replies = train_groups_by(
            fix_task, context, state, chosen, step=self._step(), server=how
        )
        kept = sum(reply["kept"] for reply in replies.values())
        if not kept and state.models:
            trained = replace(trained, models=state.models)
        return evaluated(context, trained)

    def _step(self) -> DualStep:
        return DualStep(
            warmup=self.warmup,
            distance=0.0 if self.without == "distance" else self.distance,
            confidence=self.confidence,
            plain_loss=self.without == "confidence",
            personal_lr=self.personal_lr,
            inner_steps=self.inner_steps if self.parity == "code" else 1,
            alternate=self.without not in ("alternation", "personal"),
            keeps_personal=self.without == "distance",
            is_dual=self.without != "personal",
            literal=self.parity == "paper",
        )


def fix_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the global model after dual training, weighted by the samples that trained it."""
    step: DualStep = arguments["step"]
    received = received_model(arguments)
    kept = {part: memory.get(f"personal/{part}", received[part]) for part in received}
    with client_session(client, memory, arguments, trees=[received, kept]) as own:
        with own.statistics(0, times=step.inner_steps if step.is_dual else 1):
            count, selected = train_dual(own, step, round_id=arguments["where"].round)
        if step.keeps_personal:
            personal = {f"personal/{part}": array for part, array in own.tree(1).items()}
            memory = {**memory, **personal}
        return memory, sent_model(own, weight=count, kept=count, selected=selected)

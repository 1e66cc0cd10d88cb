"""DivideMix in a federation: doubted labels are dropped and guessed (Li et al. 2020; FedRN 2022).

Both networks are sent, trained and averaged; network 1 is evaluated (the paper: the sum of both).
Deviations from the paper, as in FedRN's comparison: warm-up is counted in rounds and has no
entropy penalty, losses are of the current epoch, the optimiser is that of the train section.
Deviations from FedRN's released code: the warm-up has as many rounds as asked for (the code: one
more), losses are of images as they are (the code: augmented), the optimiser keeps its momentum and
weight decay over a round (the code: momentum of an epoch, no decay). A part of fewer than two
samples, where the code stops, means an epoch of cross-entropy; a batch of one sample is left out.
With train.augment none the two views of an image are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.methods.centralised import Centralised, baseline_round
from raysim.protocols import Client, Context, Contribution, State, Tree
from raysim.settings import check, settings
from raysim.steps.mixmatch import SMALLEST, MixStep, train_divided
from raysim.steps.peers import peer_session, sent_peers, teach_task, with_peers


@METHODS.register("dividemix")
@settings
class DivideMix(Centralised):
    """DivideMix (Li et al. 2020): two networks, doubted labels guessed and mixed."""

    threshold: float = 0.5
    """tau: a label is used if it is clean with a higher probability."""
    temperature: float = 0.5
    """T of the sharpening, at least 0.1."""
    mixing: float = 4.0
    """a of Beta(a, a)."""
    unlabelled: float = 25.0
    """lambda_u, weight of the samples without labels."""
    ramp_rounds: int = 16
    """Rounds after the warm-up until that weight is reached."""
    mixture_steps: int = 100  # FedRN; 10 in the paper
    """Of the fit of two Gaussians to the losses."""

    def __post_init__(self) -> None:
        Centralised.__post_init__(self)
        ok = 0 < self.threshold < 1
        check(ok, "threshold", "must be above 0 and below 1", got=self.threshold, do="try 0.5")
        ok = self.temperature >= 0.1  # below, powers of p vanish in float32
        check(ok, "temperature", "must be at least 0.1", got=self.temperature, do="try 0.5")
        for name, typical in (("mixing", "4"), ("mixture_steps", "100")):
            value = getattr(self, name)
            check(value > 0, name, "must be above 0", got=value, do=f"try {typical}")
        for name, typical in (("unlabelled", "25"), ("ramp_rounds", "16")):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do=f"try {typical}")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse what does not fit, batches of one sample too."""
        Centralised.check(self, config, classes=classes, dimensions=dimensions)
        if config.train.batch_size < SMALLEST:
            raise ConfigError(
                f"train.batch_size is {config.train.batch_size}, but DivideMix mixes the samples "
                "of a batch; raise it to 2 or more"
            )

    def _warm(self, context: Context, state: State) -> State:
        state = state if state.models else with_peers(context, state)
        return baseline_round(teach_task, context, state, rate=0.0)

    def _train(self, context: Context, state: State) -> State:
        state = state if state.models else with_peers(context, state)
        step = MixStep(
            threshold=self.threshold,
            temperature=self.temperature,
            mixing=self.mixing,
            unlabelled=self.unlabelled,
            ramp=self.ramp_rounds,
            steps=self.mixture_steps,
        )
        return baseline_round(divide_task, context, state, step=step)


def divide_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with both networks after training on divided samples."""
    with peer_session(client, memory, arguments) as own:
        trusted = train_divided(own, arguments["step"], round_id=arguments["where"].round)
        return memory, sent_peers(own, selected=trusted)

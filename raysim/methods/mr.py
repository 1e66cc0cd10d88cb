"""MR: train on samples that a benchmark model finds plausible (Tuor et al. 2020).

The threshold on the loss is where the losses below it are distributed like those of clean images
(least Kolmogorov-Smirnov distance). FedFixer's code, the source of the defaults, differs:
- its benchmark set has 3 % of the training and 3 % of the TEST images; ours is the server's clean
  images (data.server.per_class) only, no test image is ever seen;
- it pools the clients' losses and tries every hundredth as threshold; ours pools histograms of 100
  bins over [0, 30], which is what clients send, and tries their edges;
- it never augments; ours does as train.augment says;
- which weights it keeps is not said; ours are those of the lowest held-out loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.methods.centralised import baseline_round, refuse_other_training
from raysim.methods.clustered import needs_clean_images, one_group
from raysim.protocols import Context, Stage, State
from raysim.settings import check, settings
from raysim.steps.benchmark import BenchmarkStep, select_by_benchmark, train_kept_task


@METHODS.register("mr")
@settings
class Mr:
    """MR (Tuor et al. 2020): a model of clean images selects every client's samples once."""

    patience: int = 200  # FedFixer's code
    """Epochs without a lower held-out loss after which the benchmark model is done."""
    max_epochs: int = 10_000  # FedFixer's code
    bins: int = 100  # FedFixer's code
    """Of the histograms of losses."""
    largest_loss: float = 30.0  # FedFixer's code
    """Where the histograms end; larger losses are in the last bin."""
    privileges: ClassVar[tuple[str, ...]] = ()
    uses: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("patience", "max_epochs"):
            value = getattr(self, name)
            check(value >= 1, name, "must be at least 1", got=value, do="try 200 and 10000")
        check(self.bins >= 2, "bins", "must be at least 2", got=self.bins, do="try 100")
        ok = self.largest_loss > 0
        check(ok, "largest_loss", "must be above 0", got=self.largest_loss, do="try 30")

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        """Refuse a server without clean images to train on and to hold out."""
        needs_clean_images(config, "MR", "trains a benchmark model on the server's clean images")
        if config.data.server.per_class < 2:
            raise ConfigError(
                f"data.server.per_class is {config.data.server.per_class}, but MR trains on most "
                "clean images and holds out the others; raise data.server.per_class to 2 or more"
            )
        refuse_other_training(config, "MR")

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, the selection, and training on what was selected."""
        return (
            Stage("group", 1, one_group),
            Stage("select", 1, self._select),
            Stage("train", config.train.rounds, self._round),
        )

    def _select(self, context: Context, state: State) -> State:
        step = BenchmarkStep(
            patience=self.patience,
            max_epochs=self.max_epochs,
            bins=self.bins,
            largest=self.largest_loss,
        )
        return select_by_benchmark(context, state, step=step)

    def _round(self, context: Context, state: State) -> State:
        return baseline_round(train_kept_task, context, state)

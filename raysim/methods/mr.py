"""MR: train on the samples that a benchmark model of clean images finds plausible.

Tuor, Wang, Ko, Liu and Leung, ICPR 2020, as FedFixer's code has it (Ji et al. 2024;
raysim/docs/sheets/mr.md): samples are kept up to the loss at which the kept losses are distributed
like those of clean images (smallest Kolmogorov-Smirnov distance).

Deviations from FedFixer's code, the source of the defaults:
- its benchmark set has 3 % of the training and 3 % of the TEST images; ours is the server's clean
  images (data.server.per_class) only, no test image is ever seen;
- it pools the clients' losses and tries every hundredth as threshold; ours pools histograms of 100
  bins over [0, 30], which is what clients send, and tries their edges;
- it never augments; ours does as train.augment says, as every method's training;
- which weights it keeps is not said; ours are those of the lowest held-out loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from raysim.core.threads import one_thread, torch_device
from raysim.errors import ConfigError
from raysim.methods.method import METHODS, Method, no_clean_images, other_training
from raysim.models.evaluation import logits, sample_losses
from raysim.models.params import image_shape_of, initial_tree
from raysim.models.sessions import Session, gradients, open_session
from raysim.models.training import TrainSettings, local_optimizer
from raysim.models.zoo import Model
from raysim.protocols import Client, Context, Contribution, Stage, State, Tree, Where, stateless
from raysim.seeding import stream
from raysim.settings import In, settings
from raysim.steps.local_training import client_logits, current_labels
from raysim.steps.server import SCALAR_BYTES
from raysim.steps.sessions import sent_model

KEPT = "benchmark/kept"
"""In a client's memory: which of its samples it trains on."""
TRAINED_PART = 1 / 1.3
"""Of the clean images; the losses of the others are the reference F_B."""
BATCH = 16
FIRST_STOP = 10
"""Epochs before training may stop."""


@METHODS.register("mr")
@settings
class Mr(Method):
    """MR (Tuor et al. 2020): a model of clean images selects every client's samples once."""

    patience: Annotated[int, In("[1, inf)", do="try 200")] = 200  # FedFixer's code
    """Epochs without a lower held-out loss after which the benchmark model is done."""
    max_epochs: Annotated[int, In("[1, inf)", do="try 10000")] = 10_000  # FedFixer's code
    bins: Annotated[int, In("[2, inf)", do="try 100")] = 100  # FedFixer's code
    """Of the histograms of losses."""
    largest_loss: Annotated[float, In("(0, inf)", do="try 30")] = 30.0  # FedFixer's code
    """Where the histograms end; larger losses are in the last bin."""
    title: ClassVar[str] = "MR"
    refuses: ClassVar = (
        no_clean_images("trains a benchmark model on the server's clean images"),
        other_training,
    )
    counted_by: ClassVar = "samples"

    def check(self, config: Any, *, classes: int, dimensions: Mapping[str, int]) -> None:
        Method.check(self, config, classes=classes, dimensions=dimensions)
        if config.data.server.per_class < 2:
            raise ConfigError(
                f"data.server.per_class is {config.data.server.per_class}, but MR trains on most "
                "clean images and holds out the others; raise data.server.per_class to 2 or more"
            )

    def stages(self, config: Any) -> tuple[Stage, ...]:
        """Return one group, the selection, and training on what was selected."""
        grouping, train = Method.stages(self, config)
        return grouping, Stage("select", 1, self.select), train

    # ---- the selection, once before training ---------------------------------------------------

    def select(self, context: Context, state: State) -> State:
        """Train the benchmark model, find the threshold, let clients keep what is below it."""
        config, federation = context.config, context.federation
        (black,) = federation.map(black_task, on=federation.clients[:1]).values()
        trained = federation.serve(
            train_benchmark,
            images=context.server_images(),
            labels=context.clean[1],
            black=black,
            model=config.model,
            train=config.train,
            classes=context.classes,
            seed=config.seed,
            method=self,
        )
        shared = {
            "benchmark": federation.put(trained["model"]),
            "model": config.model,
            "classes": context.classes,
            "kernel": config.train.kernel,
        }
        clients = len(federation.clients)
        context.sent("down", "benchmark model", clients * shared["benchmark"].nbytes)
        counts = federation.map(self.count, **shared)
        context.sent("up", "loss histogram", clients * self.bins * SCALAR_BYTES)
        pooled = np.sum(list(counts.values()), axis=0)
        cut = closest_cut(trained["reference"], pooled)
        context.sent("down", "threshold", clients * SCALAR_BYTES)
        context.observe_selection(federation.map(self.keep, cut=cut, **shared))
        context.record(
            benchmark={
                "epochs": trained["epochs"],
                "loss": trained["loss"],
                "threshold": (cut + 1) * self.largest_loss / self.bins,
                "distance": float(cut_distances(trained["reference"], pooled)[cut]),
                "kept": float(pooled[: cut + 1].sum() / max(pooled.sum(), 1)),
            }
        )
        return state

    @stateless
    def count(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, np.ndarray]:
        """Reply with the histogram of the losses of the client's samples."""
        losses = benchmark_losses(client, memory, arguments)
        client.scratch["benchmark"] = losses
        return memory, self.histogram(losses)

    def keep(
        self, client: Client, memory: Tree, arguments: Mapping[str, Any]
    ) -> tuple[Tree, np.ndarray]:
        """Remember which samples lie below the threshold; reply with them, for scores only."""
        losses = client.scratch.pop("benchmark", None)
        losses = benchmark_losses(client, memory, arguments) if losses is None else losses
        kept = self.bins_of(losses) <= arguments["cut"]
        return {**memory, KEPT: kept}, kept

    def histogram(self, losses: np.ndarray) -> np.ndarray:
        """Return how many losses (N,) are in each bin (B,)."""
        return np.bincount(self.bins_of(losses), minlength=self.bins).astype(np.int32)

    def bins_of(self, losses: np.ndarray) -> np.ndarray:
        """Return the bin (N,) of each loss; what lies above ``largest_loss`` is in the last one."""
        scaled = np.floor(np.asarray(losses, dtype=np.float64) * (self.bins / self.largest_loss))
        return np.clip(scaled, 0, self.bins - 1).astype(np.int64)

    # ---- training on what was kept -------------------------------------------------------------

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train on the kept samples; the model counts by their number.

        A client that kept none sends what it received, with next to no weight.
        """
        kept = np.asarray(memory[KEPT])
        session.descend(among=np.flatnonzero(kept))
        return memory, sent_model(session, weight=float(kept.sum()))


# ---- the benchmark model, at the server ----------------------------------------------------------


def train_benchmark(
    *,
    images: np.ndarray,
    labels: np.ndarray,
    black: np.ndarray,
    model: Model,
    train: TrainSettings,
    classes: int,
    seed: int,
    method: Mr,
) -> dict[str, Any]:
    """Return the model of lowest held-out loss, that loss, and the histogram F_B.

    A part of the clean images trains it, the others are held out.
    """
    rng = stream(seed, "benchmark")
    order = rng.permutation(len(labels))
    size = min(max(int(len(labels) * TRAINED_PART), 1), len(labels) - 1)
    mine, held = order[:size], order[size:]
    start = initial_tree(model, image_shape_of(images), classes, seed)
    train = replace(train, batch_size=BATCH, proximal=0.0)
    device = torch_device()
    how: dict[str, Any] = {"rng": rng, "classes": classes, "device": device, "black": black}
    with (
        one_thread("torch"),
        open_session(model, [start], images[mine], labels[mine], train, **how) as session,
    ):

        def losses(tree: Tree) -> np.ndarray:
            outputs = logits(model, tree, images[held], classes=classes, device=device)
            return sample_losses(outputs, labels[held])

        tree, epochs = _best_epoch(session, losses, method)
        reference = losses(tree)
    return {
        "model": tree,
        "epochs": epochs,
        "loss": float(reference.mean()),
        "reference": method.histogram(reference),
    }


def _best_epoch(session: Session, losses: Any, method: Mr) -> tuple[Tree, int]:
    """Train; return the weights of lowest mean of ``losses`` and how many epochs it took."""
    from torch.nn.functional import cross_entropy

    weights = session.weights()
    update = local_optimizer(weights, session.train)
    best: Tree = session.tree()
    lowest, when = np.inf, 0
    for epoch in range(1, method.max_epochs + 1):
        for _, batch in session.batches(epochs=1):
            loss = cross_entropy(session.networks[0](batch.images), batch.labels)
            update(gradients(loss, weights))
            session.note(epoch, len(batch.index), loss)
        tree = session.tree()
        mean = float(losses(tree).mean())
        if mean < lowest:
            best, lowest, when = tree, mean, epoch
        if epoch > FIRST_STOP and epoch - when >= method.patience:
            break
    return best, epoch


@stateless
def black_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, np.ndarray]:
    """Reply with the prepared black pixel that crops move in; it is the same at every client."""
    return memory, client.world.black


def benchmark_losses(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> np.ndarray:
    """Return the losses (N,) of the client's samples under the benchmark model."""
    images = client.world.images(client.sample_ids)
    outputs = client_logits(arguments["benchmark"], images, arguments)
    return sample_losses(outputs, current_labels(client, memory))


# ---- the threshold. B bins of equal width, the last one open ------------------------------------


def cut_distances(reference: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Return sup |F_B - F_P| for a threshold behind each bin (B,) (Kolmogorov-Smirnov distance).

    F_P are the ``pooled`` counts up to the bin; infinite where there are none.
    """
    wanted = np.cumsum(reference) / max(reference.sum(), 1)
    total = np.cumsum(pooled)
    kept = np.minimum(total[None, :], total[:, None])  # rows: cuts
    shares = kept / np.maximum(total, 1)[:, None]
    return np.where(total > 0, np.abs(shares - wanted).max(axis=1), np.inf)


def closest_cut(reference: np.ndarray, pooled: np.ndarray) -> int:
    """Return the last bin to keep, so that what is kept is closest to ``reference``.

    Of several the lowest; the last bin of all where there is nothing to cut.
    """
    if not pooled.sum():
        return len(pooled) - 1
    return int(cut_distances(reference, pooled).argmin())

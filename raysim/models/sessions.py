"""Local training that a method writes itself: one or more networks, its own losses and updates.

This module imports torch when a session is opened, not before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.models.evaluation import in_parts
from raysim.models.params import image_shape_of, load_tree, module_for, seeded, to_tree
from raysim.models.training import (
    Batch,
    TrainSettings,
    batches,
    diverged,
    local_optimizer,
    refuse_diverged,
)
from raysim.models.zoo import Model
from raysim.protocols import Tree

if TYPE_CHECKING:
    import torch

FIRST_SLOT = 1
"""Slot 0 is for evaluation, which may run while a session is open."""


@dataclass(eq=False)
class Session:
    """A client's networks for one round, its samples and its randomness."""

    networks: list[Any]
    images: np.ndarray
    labels: np.ndarray
    train: TrainSettings
    rng: np.random.Generator
    classes: int
    device: str
    black: np.ndarray | None = None
    """What crops move in (channels,)."""
    sent: Mapping[str, Any] = field(default_factory=dict)
    """What the server sent, by name."""
    scratch: dict[str, Any] = field(default_factory=dict)
    """The client's cache; it may vanish at any time."""
    _seen: tuple[int, int, float] = (-1, 0, 0.0)

    @property
    def loss(self) -> float:
        """Mean over the samples noted in the last epoch; nan if there are none."""
        _, samples, total = self._seen
        return total / samples if samples else float("nan")

    def note(self, epoch: int, samples: int, loss: torch.Tensor) -> None:
        """Remember the mean loss of a batch; refuses one that is not finite."""
        value = loss.item()
        if not math.isfinite(value):
            raise diverged(self.train, epoch + 1, 2, f"the loss is {value}")
        last, count, total = self._seen
        count, total = (count, total) if epoch == last else (0, 0.0)
        self._seen = (epoch, count + samples, total + samples * value)

    def batches(
        self, among: np.ndarray | None = None, *, epochs: int | None = None
    ) -> Iterator[tuple[int, Batch]]:
        """Yield (epoch from 0, batch) over the samples ``among`` (default all).

        ``Batch.index`` are positions in the client's arrays.
        """
        found = batches(
            self.images,
            self.labels,
            self.train,
            rng=self.rng,
            device=self.device,
            black=self.black,
            among=among,
            epochs=epochs,
        )
        for epoch, batch in found:
            yield epoch - 1, batch

    def descend(
        self, which: int = 0, *, among: np.ndarray | None = None, epochs: int | None = None
    ) -> None:
        """Train a network by cross-entropy on the samples ``among``, as FedAvg's clients do."""
        from torch.nn.functional import cross_entropy

        weights = self.weights(which)
        update = local_optimizer(weights, self.train)
        for epoch, batch in self.batches(among, epochs=epochs):
            loss = cross_entropy(self.networks[which](batch.images), batch.labels)
            update(gradients(loss, weights))
            self.note(epoch, len(batch.index), loss)

    def tune_head(self, which: int, *, among: np.ndarray, epochs: int = 1) -> None:
        """Train only the linear head of a network; its body stays."""
        from torch.nn.functional import cross_entropy

        network = self.networks[which]
        weights = list(network.head.parameters())
        update = local_optimizer(weights, self.train)
        for _, batch in self.batches(among, epochs=epochs):
            loss = cross_entropy(network(batch.images), batch.labels)
            update(gradients(loss, weights))

    def looked_at(
        self, which: int, run: Callable[[torch.Tensor], torch.Tensor], width: int
    ) -> np.ndarray:
        """Return what ``run`` makes of all images, (N, width), the network in evaluation mode.

        In batches as large as in training where batch norm knows nothing but its batch.
        """
        network = self.networks[which].eval()
        rows = self.train.batch_size
        found = in_parts(network, self.images, width, normed_rows=rows, device=self.device, run=run)
        network.train()
        return found

    @contextmanager
    def statistics(self, which: int, *, times: int) -> Iterator[None]:
        """Move a network's batch statistics as ``times`` equal passes per batch would."""
        from torch.nn.modules.batchnorm import _BatchNorm

        norms = [m for m in self.networks[which].modules() if isinstance(m, _BatchNorm)]
        before = [norm.momentum for norm in norms]
        try:
            for norm in norms:
                norm.momentum = 1.0 - (1.0 - (norm.momentum or 0.0)) ** times
            yield
        finally:
            for norm, momentum in zip(norms, before, strict=True):
                norm.momentum = momentum

    def label_shares(self) -> torch.Tensor:
        """Return pi, how often each label occurs among the client's samples (C,)."""
        import torch

        counts = np.bincount(self.labels, minlength=self.classes) / len(self.labels)
        return torch.tensor(counts, dtype=torch.float32, device=self.device)

    def weights(self, which: int = 0) -> list[torch.Tensor]:
        """Return the trainable parameters of a network."""
        return list(self.networks[which].parameters())

    def load(self, which: int, tree: Tree) -> None:
        """Give a network other weights."""
        load_tree(self.networks[which], tree)
        self.networks[which].train()

    def tree(self, which: int = 0) -> dict[str, np.ndarray]:
        """Return a copy of a network's weights; refuses those that have diverged."""
        tree = to_tree(self.networks[which])
        refuse_diverged(tree, self.train, 2)
        return tree


@contextmanager
def open_session(
    model: Model,
    trees: Sequence[Tree],
    images: np.ndarray,
    labels: np.ndarray,
    train: TrainSettings,
    *,
    rng: np.random.Generator,
    classes: int,
    device: str = "cpu",
    black: np.ndarray | None = None,
) -> Iterator[Session]:
    """Open networks with the weights ``trees``, in training mode, torch seeded from ``rng``."""
    shape = image_shape_of(images)
    networks = [
        module_for(model, shape, classes, device=device, slot=FIRST_SLOT + i)
        for i in range(len(trees))
    ]
    made = Session(networks, images, labels, train, rng, classes, device, black)
    for which, tree in enumerate(trees):
        made.load(which, tree)
    with seeded(int(rng.integers(2**63)), device):
        yield made


def gradients(loss: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return d loss / d weights; zeros for weights that the loss does not reach."""
    import torch

    found = torch.autograd.grad(loss, list(weights), allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]

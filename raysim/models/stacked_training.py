"""Many clients trained together by the hand-derived gradients of ``closed_form``.

Clients of dense networks are stacked (S clients, B rows, D inputs, P parameters), those of
convolutions come one by one. A client's result does not depend on who shares its stack: every
product has the same shape, short batches are padded with rows of weight zero. Same updates as
``training.train_client`` up to rounding (tests compare).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from raysim.core.threads import one_thread
from raysim.models.forms import Form, is_dense, num_classes
from raysim.models.training import TrainReport, TrainSettings
from raysim.protocols import Tree

if TYPE_CHECKING:
    from raysim.models.closed_form import Network

STACK_BYTES = 32_000_000
"""Memory of one stack: few large calls cost less than many small. It does not change any bit."""


@dataclass(frozen=True)
class Member:
    """One client's part of a stack; its images are fetched when its turn comes."""

    images: Callable[[], np.ndarray]
    """Returns normalised float32 images (n, channels, height, width)."""
    labels: np.ndarray
    rng: Callable[[], np.random.Generator]


@dataclass(frozen=True)
class Trained:
    """Results of some members: ``places`` in the given sequence, stacked parameters, reports."""

    places: tuple[int, ...]
    trainable: np.ndarray
    reports: tuple[TrainReport, ...]


def train_cohort(
    form: Form, tree: Tree, members: Sequence[Member], settings: TrainSettings
) -> Iterator[Trained]:
    """Yield the models of ``members``, all started from ``tree``, a stack at a time."""
    sizes = [len(member.labels) for member in members]
    start = np.asarray(tree["trainable"], dtype=np.float32)
    room = STACK_BYTES if is_dense(form) else 0
    for places in stacks(sizes, form[0].inputs, start.size, settings.batch_size, room):
        chosen = [members[p] for p in places]
        trained, losses = _train_stack(form, start, chosen, settings)
        steps = [settings.epochs * ceil(sizes[p] / settings.batch_size) for p in places]
        reports = tuple(
            TrainReport(loss=float(loss), steps=count, samples=sizes[p])
            for p, loss, count in zip(places, losses, steps, strict=True)
        )
        yield Trained(places, trained, reports)


def stacks(
    sizes: Sequence[int], inputs: int, num_parameters: int, batch_size: int, budget: int
) -> list[tuple[int, ...]]:
    """Cut clients into stacks of one batch shape within ``budget`` bytes, largest first."""
    order = sorted(range(len(sizes)), key=lambda p: (-sizes[p], p))
    cut: list[tuple[int, ...]] = []
    while order:
        rows = batch_rows(sizes[order[0]], batch_size)
        padded = rows * max(ceil(sizes[order[0]] / rows), 1)
        each = 4 * (padded * inputs + 4 * num_parameters)
        room = max(budget // each, 1)
        same = [p for p in order[:room] if batch_rows(sizes[p], batch_size) == rows]
        cut.append(tuple(same))
        order = order[len(same) :]
    return cut


def batch_rows(size: int, batch_size: int) -> int:
    """Return the rows of every product of a client: its batch, or all its samples, in eights."""
    return min(batch_size, max(-(-size // 8) * 8, 8))


def _train_stack(
    form: Form, start: np.ndarray, members: Sequence[Member], settings: TrainSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Return parameters (S, P) and the mean loss of the last epoch (S,); sizes do not increase."""
    from raysim.models.closed_form import network

    sizes = np.array([len(member.labels) for member in members])
    rows = batch_rows(int(sizes[0]), settings.batch_size)
    weights = np.repeat(start[None], len(members), axis=0)
    step = _stepper(network(form, weights), weights, start, settings)
    batches = _Batches(members, sizes, rows, form[0].inputs, num_classes(form))
    losses = np.full(len(members), np.nan)
    # Adam is torch's, the rest NumPy's
    with one_thread("torch") if settings.optimizer == "adam" else nullcontext():
        for epoch in range(settings.epochs):
            batches.shuffle(settings.order)
            last = epoch + 1 == settings.epochs
            total = np.zeros(len(members))
            for images, targets, share in batches:
                total[: len(images)] += step(images, targets, share, with_loss=last)
            if last:
                losses[sizes > 0] = total[sizes > 0] / sizes[sizes > 0]
    return weights, losses


class _Batches:
    """The padded images, targets and row weights of a stack, cut into batches."""

    def __init__(
        self, members: Sequence[Member], sizes: np.ndarray, rows: int, inputs: int, classes: int
    ) -> None:
        self._members, self._sizes, self._rows, self._inputs = members, sizes, rows, inputs
        self._steps = -(-sizes // rows)
        length = rows * max(int(self._steps[0]), 1)
        count = len(members)
        self._images = np.zeros((count, length, inputs), dtype=np.float32)
        self._targets = np.zeros((count, length, classes), dtype=np.float32)
        self._share = np.zeros((count, length, 1), dtype=np.float32)
        self._source: list[np.ndarray] = []
        self._rngs: list[np.random.Generator] = []
        for s, size in enumerate(sizes):
            full = (size // rows) * rows
            self._share[s, :full] = 1.0 / rows
            self._share[s, full:size] = 1.0 / max(size - full, 1)

    def shuffle(self, order: str) -> None:
        """Put the samples of every client into the order of the next epoch."""
        first = not self._source
        if first:
            self._source = [m.images().reshape(len(m.labels), self._inputs) for m in self._members]
        if order == "stored":
            if first:
                for s, member in enumerate(self._members):
                    self._fill(s, np.arange(len(member.labels)))
            return
        if first:
            self._rngs = [m.rng() for m in self._members]
            for rng in self._rngs:
                rng.integers(2**63)  # train_client seeds torch with it: the orders stay the same
        for s, rng in enumerate(self._rngs):
            self._fill(s, rng.permutation(int(self._sizes[s])))

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the batch of every client that still has one; those are the first of the stack."""
        for step in range(int(self._steps[0])):
            active = int(np.count_nonzero(self._steps > step))
            cut = slice(step * self._rows, (step + 1) * self._rows)
            yield (
                self._images[:active, cut],
                self._targets[:active, cut],
                self._share[:active, cut],
            )

    def _fill(self, s: int, order: np.ndarray) -> None:
        size = len(order)
        np.take(self._source[s], order, axis=0, out=self._images[s, :size], mode="clip")
        self._targets[s, :size] = 0.0
        self._targets[s, np.arange(size), self._members[s].labels[order]] = 1.0


def _stepper(
    net: Network, weights: np.ndarray, start: np.ndarray, settings: TrainSettings
) -> Callable[..., np.ndarray]:
    """Return the function that takes a batch, moves its clients' weights and returns the loss."""
    if settings.optimizer == "sgd" and not (
        settings.momentum or settings.weight_decay or settings.proximal
    ):
        return partial(net.descend, lr=settings.lr)
    update = _updater(weights, start, settings)

    def step(
        images: np.ndarray, targets: np.ndarray, share: np.ndarray, *, with_loss: bool
    ) -> np.ndarray:
        gradient, loss = net.gradient(images, targets, share, with_loss=with_loss)
        update(gradient, len(images))
        return loss

    return step


def _updater(
    weights: np.ndarray, start: np.ndarray, settings: TrainSettings
) -> Callable[[np.ndarray, int], None]:
    """Return the function that moves the first ``active`` clients by their gradients, in place."""
    is_adam = settings.optimizer == "adam"
    decay = np.float32(0.0 if is_adam else settings.weight_decay)  # Adam adds its own
    proximal = np.float32(settings.proximal)
    # Temporaries of this size come fresh from the system at every step, page by page: keep one.
    spare = np.empty_like(weights)
    descend = _adam(weights, settings) if is_adam else _sgd(weights, settings, spare)

    def update(gradient: np.ndarray, active: int) -> None:
        move, own, free = gradient[:active], weights[:active], spare[:active]
        if decay:
            np.multiply(own, decay, out=free)
            move += free
        if proximal:
            np.subtract(own, start, out=free)
            free *= proximal
            move += free
        descend(move, active)

    return update


def _sgd(
    weights: np.ndarray, settings: TrainSettings, spare: np.ndarray
) -> Callable[[np.ndarray, int], None]:
    lr, momentum = np.float32(settings.lr), np.float32(settings.momentum)
    velocity = np.zeros_like(weights)

    def descend(move: np.ndarray, active: int) -> None:
        velocity[:active] *= momentum
        velocity[:active] += move
        np.multiply(velocity[:active], lr, out=spare[:active])
        weights[:active] -= spare[:active]

    return descend


def _adam(weights: np.ndarray, settings: TrainSettings) -> Callable[[np.ndarray, int], None]:
    """Return torch's Adam, one pass over the weights where numpy needs fourteen."""
    import torch

    from raysim.models.optimizers import adam

    update = adam(
        [torch.from_numpy(own) for own in weights], lr=settings.lr, decay=settings.weight_decay
    )
    return lambda move, active: update([torch.from_numpy(own) for own in move[:active]])

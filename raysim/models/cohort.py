"""Many clients trained together: closed-form gradients of dense networks on stacked weights.

Logistic regression and the perceptron need no autograd. Clients are stacked (S clients, B rows, D
inputs, P parameters) and NumPy multiplies one slice after another, so a client's result does not
depend on who shares its stack: every product has the same shape, short batches are padded with
rows of weight zero. Same updates as ``training.train_client`` up to rounding (tests compare).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from raysim.models.training import TrainReport, TrainSettings
from raysim.protocols import Tree

STACK_BYTES = 8_000_000
"""Memory of one stack; about what the caches hold. It does not change any bit."""


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
    widths: tuple[int, ...], tree: Tree, members: Sequence[Member], settings: TrainSettings
) -> Iterator[Trained]:
    """Yield the models of ``members``, all started from ``tree``, a stack at a time."""
    sizes = [len(member.labels) for member in members]
    start = np.asarray(tree["trainable"], dtype=np.float32)
    for places in stacks(sizes, widths[0], start.size, settings.batch_size):
        chosen = [members[p] for p in places]
        trained, losses = _train_stack(widths, start, chosen, settings)
        steps = [settings.epochs * ceil(sizes[p] / settings.batch_size) for p in places]
        reports = tuple(
            TrainReport(loss=float(loss), steps=count, samples=sizes[p])
            for p, loss, count in zip(places, losses, steps, strict=True)
        )
        yield Trained(places, trained, reports)


def dense_logits(widths: tuple[int, ...], tree: Tree, images: np.ndarray) -> np.ndarray:
    """Return the logits (N, C) of a dense model without torch."""
    flat = np.ascontiguousarray(images.reshape(1, len(images), -1), dtype=np.float32)
    weights = np.array(tree["trainable"], dtype=np.float32)[None]
    found: np.ndarray = _Dense(widths, weights).forward(flat)[-1][0]
    return found


def stacks(
    sizes: Sequence[int], inputs: int, num_parameters: int, batch_size: int
) -> list[tuple[int, ...]]:
    """Cut clients into stacks of one batch shape within the budget, largest clients first."""
    order = sorted(range(len(sizes)), key=lambda p: (-sizes[p], p))
    cut: list[tuple[int, ...]] = []
    while order:
        rows = batch_rows(sizes[order[0]], batch_size)
        padded = rows * max(ceil(sizes[order[0]] / rows), 1)
        each = 4 * (padded * inputs + 4 * num_parameters)
        room = max(STACK_BYTES // each, 1)
        same = [p for p in order[:room] if batch_rows(sizes[p], batch_size) == rows]
        cut.append(tuple(same))
        order = order[len(same) :]
    return cut


def batch_rows(size: int, batch_size: int) -> int:
    """Return the rows of every product of a client: its batch, or all its samples, in eights."""
    return min(batch_size, max(-(-size // 8) * 8, 8))


def _train_stack(
    widths: tuple[int, ...],
    start: np.ndarray,
    members: Sequence[Member],
    settings: TrainSettings,
) -> tuple[np.ndarray, np.ndarray]:
    """Return parameters (S, P) and the mean loss of the last epoch (S,); sizes do not increase."""
    sizes = np.array([len(member.labels) for member in members])
    rows = batch_rows(int(sizes[0]), settings.batch_size)
    weights = np.repeat(start[None], len(members), axis=0)
    network = _Dense(widths, weights)
    update = _updater(weights, start, settings)
    batches = _Batches(members, sizes, rows, widths[0], widths[-1])
    losses = np.full(len(members), np.nan)
    for epoch in range(settings.epochs):
        batches.shuffle(settings.order)
        last = epoch + 1 == settings.epochs
        total = np.zeros(len(members))
        for images, targets, share in batches:
            active = len(images)
            gradient, loss = network.gradient(images, targets, share, with_loss=last)
            update(gradient, active)
            if last:
                total[:active] += loss
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


class _Dense:
    """Layers with ReLU between them, as views of stacked parameters."""

    def __init__(self, widths: tuple[int, ...], weights: np.ndarray) -> None:
        self._gradient = np.empty_like(weights)
        self._layers = _views(widths, weights)
        self._slots = _views(widths, self._gradient)

    def gradient(
        self, images: np.ndarray, targets: np.ndarray, share: np.ndarray, *, with_loss: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return d(mean cross-entropy)/d(parameters) (S, P) and the summed loss (S,)."""
        active = len(images)
        *inputs, out = self.forward(images)
        out -= out.max(axis=2, keepdims=True)
        chosen = (out * targets).sum(axis=2) if with_loss else None
        np.exp(out, out=out)
        total = out.sum(axis=2, keepdims=True)
        loss = np.zeros(active)
        if chosen is not None:
            valid = share[:, :, 0] > 0
            loss = np.where(valid, np.log(total[:, :, 0]) - chosen, 0.0).sum(axis=1)
        out /= total
        out -= targets
        out *= share  # softmax minus one-hot, over the batch; padded rows weigh nothing
        self._backward(inputs, out, active)
        return self._gradient, loss

    def forward(self, images: np.ndarray) -> list[np.ndarray]:
        """Return the input of every layer, and the logits last."""
        active, outputs = len(images), [images]
        for depth, (weight, bias) in enumerate(self._layers):
            out = outputs[-1] @ weight[:active].transpose(0, 2, 1)
            out += bias[:active, None]
            if depth + 1 < len(self._layers):
                np.maximum(out, 0.0, out=out)
            outputs.append(out)
        return outputs

    def _backward(self, inputs: list[np.ndarray], error: np.ndarray, active: int) -> None:
        for depth in range(len(self._layers) - 1, -1, -1):
            weight_slot, bias_slot = self._slots[depth]
            np.matmul(error.transpose(0, 2, 1), inputs[depth], out=weight_slot[:active])
            np.sum(error, axis=1, out=bias_slot[:active])
            if depth:
                error = error @ self._layers[depth][0][:active]
                error *= inputs[depth] > 0


def _views(widths: tuple[int, ...], stacked: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (weight (S, out, in), bias (S, out)) of each layer, in the order of the flat tree."""
    views, at = [], 0
    for inputs, outputs in pairwise(widths):
        end = at + inputs * outputs
        weight = stacked[:, at:end].reshape(len(stacked), outputs, inputs)
        views.append((weight, stacked[:, end : end + outputs]))
        at = end + outputs
    return views


def _updater(
    weights: np.ndarray, start: np.ndarray, settings: TrainSettings
) -> Callable[[np.ndarray, int], None]:
    """Return the function that moves the first ``active`` clients by their gradients, in place."""
    decay, proximal = np.float32(settings.weight_decay), np.float32(settings.proximal)
    descend = (
        _adam(weights, settings.lr) if settings.optimizer == "adam" else _sgd(weights, settings)
    )

    def update(gradient: np.ndarray, active: int) -> None:
        move, own = gradient[:active], weights[:active]
        if decay:
            move += decay * own
        if proximal:
            move += proximal * (own - start)
        descend(move, active)

    return update


def _sgd(weights: np.ndarray, settings: TrainSettings) -> Callable[[np.ndarray, int], None]:
    lr, momentum = np.float32(settings.lr), np.float32(settings.momentum)
    velocity = np.zeros_like(weights) if momentum else None

    def descend(move: np.ndarray, active: int) -> None:
        if velocity is None:
            move *= lr
            weights[:active] -= move
            return
        velocity[:active] *= momentum
        velocity[:active] += move
        weights[:active] -= lr * velocity[:active]

    return descend


def _adam(weights: np.ndarray, lr: float) -> Callable[[np.ndarray, int], None]:
    """Return Adam's update, betas 0.9 and 0.999, epsilon 1e-8."""
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    steps = [0] * len(weights)  # per client: smaller ones make fewer steps in every epoch

    def descend(move: np.ndarray, active: int) -> None:
        for s in range(active):
            steps[s] += 1
        own_steps = steps[:active]
        rate = np.array([[lr / (1.0 - 0.9**n)] for n in own_steps], dtype=np.float32)
        root = np.array([[(1.0 - 0.999**n) ** 0.5] for n in own_steps], dtype=np.float32)
        first[:active] += np.float32(0.1) * (move - first[:active])
        second[:active] *= np.float32(0.999)
        second[:active] += np.float32(0.001) * move * move
        scale = np.sqrt(second[:active])
        scale /= root
        scale += np.float32(1e-8)
        weights[:active] -= rate * first[:active] / scale

    return descend

"""What a noise model is: the registry, the labels it gives, and what kinds that draw share.

Every client draws from its own random stream, so its noise does not depend on who else takes part.
Sizes are counted after impurity, and true labels never leave the driver. What each kind follows:
raysim/docs/sheets/noise.md.
"""
# n samples of one client, K clients, C classes

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysim.data.partition import Split
from raysim.errors import ConfigError
from raysim.settings import Registry, settings

ClientStreams = Callable[[int], np.random.Generator]
"""A client's own random stream."""


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """Given labels of every client, and how they came about (for the evaluator only)."""

    given: tuple[np.ndarray, ...]
    """Labels in the order of ``Split.clients``, int64."""
    rate: np.ndarray
    """Drawn noise level of each client (alpha_k), (K,) float64."""
    realised: np.ndarray
    """Share of each client's labels that are wrong, (K,) float64."""
    is_noisy: np.ndarray
    """Whether each client was drawn as noisy, (K,) bool."""
    target: np.ndarray
    """The one label all of a client's flips go to, (K,) int64; -1 if there is none."""

    @classmethod
    def not_drawn(cls, given: Sequence[np.ndarray], wrong: np.ndarray) -> NoisyLabels:
        """Return labels that nobody drew: a client's level is its share of ``wrong`` ones."""
        nothing = np.full(len(given), -1, dtype=np.int64)
        return cls(tuple(given), wrong, wrong, wrong > 0.0, nothing)


class Noise(ABC):
    """A configured noise model."""

    __slots__ = ()
    choice_name: ClassVar[str]

    @abstractmethod
    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return every client's given labels; ``labels`` are the true ones of the training set."""


NOISE: Registry[Noise] = Registry(
    "noise model",
    key="kind",
    home="raysim.data.noise",
    other_names={
        "mixed": "ramp with flips mixed",
        "linear": "ramp",
        "pairflip": "asymmetric",
        "cifar10n": "human",
        "cifar100n": "human",
    },
)


@dataclass(frozen=True)
class Holder:
    """The client whose labels are being flipped, and what a kind may know beside them."""

    id: int
    split: Split
    classes: int

    @property
    def task(self) -> tuple[int, ...]:
        """Classes of the client's task."""
        return self.split.tasks[self.split.task_of[self.id]]


@dataclass(frozen=True)
class Flips:
    """Which samples of a client get which labels."""

    picked: np.ndarray
    """Positions among the client's samples."""
    labels: np.ndarray | int
    rate: float
    """The level that was drawn."""
    target: int = -1
    """The label of all flips, where it is the same one by intention."""


@settings
class NoiseKind(Noise):
    """Noise that is drawn: a kind holds its settings and writes ``flip``."""

    @abstractmethod
    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        """Return the flips of a noisy client; its ``true`` labels are not changed."""

    def noisy_clients(self, streams: Sequence[np.random.Generator]) -> np.ndarray:
        """Return which clients flip labels, (K,) bool; their streams then go on where they are."""
        return np.ones(len(streams), dtype=np.bool_)

    def check_fits(self, split: Split, classes: int) -> None:
        """Refuse a dataset or partition that this noise cannot be drawn for."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return the true labels of every client, with the flips of the noisy ones."""
        self.check_fits(split, classes)
        streams = [rngs(client) for client in range(len(split.clients))]
        drawn_noisy = self.noisy_clients(streams)
        given = [labels[ids].astype(np.int64) for ids in split.clients]
        rate = np.zeros(len(given))
        target = np.full(len(given), -1, dtype=np.int64)
        for k in np.flatnonzero(drawn_noisy).tolist():
            flips = self.flip(given[k], Holder(k, split, classes), streams[k])
            given[k][flips.picked] = flips.labels
            rate[k], target[k] = flips.rate, flips.target
        return NoisyLabels(
            given=tuple(given),
            rate=rate,
            realised=realised_noise(labels, split, given),
            is_noisy=rate > 0.0,
            target=target,
        )


@NOISE.register("none")
@settings
class NoNoise(NoiseKind):
    """True labels."""

    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        return Flips(np.arange(0), 0, 0.0)


def realised_noise(labels: np.ndarray, split: Split, given: Sequence[np.ndarray]) -> np.ndarray:
    """Return the share of each client's labels that are wrong, (K,)."""
    pairs = zip(split.clients, given, strict=True)
    return np.array([np.mean(labels[ids] != y) for ids, y in pairs], dtype=np.float64)


def other_classes(true: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return a label for each of ``true``, drawn from the C - 1 other classes."""
    return (true + rng.integers(1, classes, len(true))) % classes


def check_two_classes(classes: int, kind: str) -> None:
    """Refuse a dataset in which there is no wrong label."""
    if classes < 2:
        raise ConfigError(
            f"data.noise.kind {kind} needs two classes or more, got {classes}; "
            "set data.noise.kind to none"
        )

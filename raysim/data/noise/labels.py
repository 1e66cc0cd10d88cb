"""What a noise model is: the registry, the labels it gives, and what all of them need.

Every client draws from its own random stream, so its noise does not depend on who else takes part.
Sizes are counted after impurity, and true labels never leave the driver.
"""
# n samples of one client, K clients

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raysim.data.partition import Split
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


class Noise(Protocol):
    """A configured noise model."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return every client's given labels; ``labels`` are the true ones of the training set."""
        ...


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


@NOISE.register("none")
@settings
class NoNoise:
    """True labels."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return the true labels."""
        return for_each(labels, split, lambda client, true: Drawn(true, 0.0))


@dataclass(frozen=True)
class Drawn:
    """One client's given labels, its drawn level and its target label."""

    given: np.ndarray
    rate: float
    target: int = -1


def for_each(
    labels: np.ndarray, split: Split, flip: Callable[[int, np.ndarray], Drawn]
) -> NoisyLabels:
    """Return what ``flip(client, true labels)`` gives for every client."""
    drawn = [flip(k, labels[ids].astype(np.int64)) for k, ids in enumerate(split.clients)]
    given = tuple(d.given for d in drawn)
    rate = np.array([d.rate for d in drawn], dtype=np.float64)
    return NoisyLabels(
        given=given,
        rate=rate,
        realised=realised_noise(labels, split, given),
        is_noisy=rate > 0.0,
        target=np.array([d.target for d in drawn], dtype=np.int64),
    )


def realised_noise(labels: np.ndarray, split: Split, given: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the share of each client's labels that are wrong, (K,)."""
    pairs = zip(split.clients, given, strict=True)
    return np.array([np.mean(labels[ids] != y) for ids, y in pairs], dtype=np.float64)

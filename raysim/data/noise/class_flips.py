"""Flips from class to class, whatever the task: any other class, or the one it is taken for.

At one rate for some of the clients (ClipFL, RHFL), or at a rate that grows from client to client
(FedRN).
"""
# n samples of one client, K clients, C classes

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np

from raysim.data.datasets.classes import CIFAR100_SUPERCLASSES
from raysim.data.noise.labels import (
    NOISE,
    Flips,
    Holder,
    NoiseKind,
    check_two_classes,
    other_classes,
)
from raysim.data.partition import Split, floor_share
from raysim.errors import ConfigError
from raysim.settings import In, check, settings

ClassMap = Literal["previous", "next", "mnist", "cifar10", "cifar100"]

_PAIRS: dict[str, tuple[tuple[int, int], ...]] = {
    # Patrini et al., CVPR 2017; raysim/docs/sheets/noise.md
    "mnist": ((2, 7), (3, 8), (5, 6), (6, 5), (7, 1)),
    # truck -> automobile, bird -> airplane, deer -> horse, cat <-> dog
    "cifar10": ((9, 1), (2, 0), (4, 7), (3, 5), (5, 3)),
    # the next class of the same superclass, in a circle
    "cifar100": tuple(
        pair
        for group in CIFAR100_SUPERCLASSES
        for pair in zip(group, (*group[1:], group[0]), strict=True)
    ),
}
_CLASSES = {"mnist": 10, "cifar10": 10, "cifar100": 100}


@NOISE.register("symmetric")
@settings
class Symmetric(NoiseKind):
    """T_ii = 1 - mu and T_ij = mu / (C - 1) for a share of the clients (ClipFL, RHFL)."""

    rate: Annotated[float, In("[0, 1]")] = 0.5  # mu; ClipFL also has 0.8
    """Probability that a label of a noisy client is wrong."""
    # rho; ClipFL has 0.5, its figure 11 0.3 and 0.8
    noisy_fraction: Annotated[float, In("[0, 1]")] = 1.0
    """Share of the clients that are noisy: exactly floor(rho K), chosen at random."""

    def check_fits(self, split: Split, classes: int) -> None:
        check_two_classes(classes, self.choice_name)

    def noisy_clients(self, streams: Sequence[np.random.Generator]) -> np.ndarray:
        """Return which floor(rho K) clients are noisy, (K,) bool, any set equally likely.

        Those with the smallest first numbers of their own streams: an exact count without a stream
        that all share.
        """
        lots = np.array([rng.random() for rng in streams])
        is_noisy = np.zeros(len(lots), dtype=np.bool_)
        count = floor_share(self.noisy_fraction, len(lots))
        is_noisy[np.argsort(lots, kind="stable")[:count]] = True
        return is_noisy

    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        """Draw every label from the row of its true class."""
        picked = np.flatnonzero(rng.random(len(true)) < self.rate)
        return Flips(picked, other_classes(true[picked], client.classes, rng), self.rate)


@NOISE.register("asymmetric")
@settings
class Asymmetric(Symmetric):
    """Each class is taken for one other, for a share of the clients (pair flips, class maps)."""

    rate: Annotated[float, In("[0, 1]")] = 0.4
    """Probability that a label of a noisy client is wrong, where its class is flipped at all."""
    class_map: ClassMap = "previous"
    """What a class is taken for. previous: y - 1 (FedRN, FedLSR); next: y + 1 (Co-teaching, RHFL),
    both in a circle; mnist, cifar10: look-alikes; cifar100: next of its superclass (Patrini)."""
    pairs: tuple[tuple[int, int], ...] = ()
    """[true class, given class] pairs of your own, instead of ``class_map``."""

    def __post_init__(self) -> None:
        sources = [source for source, _ in self.pairs]
        known = len(sources) == len(set(sources))
        check(known, "pairs", "must name each true class once", got=self.pairs)

    def check_fits(self, split: Split, classes: int) -> None:
        check_two_classes(classes, self.choice_name)
        map_targets(self.class_map, self.pairs, classes)

    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        """Draw every label from its true class and the one that this is taken for."""
        targets = map_targets(self.class_map, self.pairs, client.classes)
        picked = np.flatnonzero(rng.random(len(true)) < self.rate)
        return Flips(picked, targets[true[picked]], self.rate)


@NOISE.register("ramp")
@settings
class Ramp(NoiseKind):
    """Noise grows linearly from client to client; symmetric, asymmetric or mixed flips (FedRN)."""

    low: Annotated[float, In("[0, 1]")] = 0.0
    """Share of wrong labels of the first client."""
    high: Annotated[float, In("[0, 1]")] = 0.4  # FedRN also has 0.8
    """Share that a client after the last would have: 0.0 to 0.4 over 100 clients ends at 0.396."""
    flips: Literal["symmetric", "asymmetric", "mixed"] = "symmetric"
    """symmetric: to any other class; asymmetric: by ``class_map``; mixed: the first half of the
    clients symmetric, the second asymmetric, each half with a ramp of its own."""
    class_map: ClassMap = "previous"
    """What a class is taken for (see noise asymmetric)."""

    def check_fits(self, split: Split, classes: int) -> None:
        check_two_classes(classes, self.choice_name)
        map_targets(self.class_map, (), classes)

    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        """Flip exactly floor(rate_i n_i) labels, rate_i = low + i (high - low) / K."""
        i, clients = client.id, len(client.split.clients)
        is_symmetric = self.flips == "symmetric"
        if self.flips == "mixed":  # i and K of the client's own half
            half = clients // 2
            is_symmetric = i < half
            i, clients = (i, half) if is_symmetric else (i - half, clients - half)
        rate = self.low + i / clients * (self.high - self.low)
        picked = rng.permutation(len(true))[: floor_share(rate, len(true))]
        if is_symmetric:
            return Flips(picked, other_classes(true[picked], client.classes, rng), rate)
        return Flips(picked, map_targets(self.class_map, (), client.classes)[true[picked]], rate)


def map_targets(class_map: ClassMap, pairs: Sequence[tuple[int, int]], classes: int) -> np.ndarray:
    """Return what each class is flipped to, (C,) int64; a class that stays maps to itself."""
    if not pairs and class_map in ("previous", "next"):
        step = 1 if class_map == "next" else -1
        return (np.arange(classes) + step) % classes
    if not pairs and classes != _CLASSES[class_map]:
        raise ConfigError(
            f"data.noise.class_map {class_map} is for {_CLASSES[class_map]} classes, got a dataset "
            f"of {classes}; set it to previous or next, or name pairs in data.noise.pairs"
        )
    targets = np.arange(classes)
    for source, target in pairs or _PAIRS[class_map]:
        if not (0 <= source < classes and 0 <= target < classes):
            raise ConfigError(
                f"data.noise.pairs must name classes 0..{classes - 1}, got [{source}, {target}]; "
                "write [true class, given class]"
            )
        targets[source] = target
    return targets

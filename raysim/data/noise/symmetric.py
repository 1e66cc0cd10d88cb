"""A transition matrix for some of the clients: symmetric (ClipFL, RHFL) or from class to class."""
# n samples of one client, K clients, C classes

from __future__ import annotations

import numpy as np

from raysim.data.noise.flips import (
    ClassMap,
    check_two_classes,
    map_targets,
    to_mapped_class,
    to_other_class,
)
from raysim.data.noise.labels import NOISE, ClientStreams, Drawn, NoisyLabels, for_each
from raysim.data.partition import Split, floor_share
from raysim.settings import check, settings


@NOISE.register("symmetric")
@settings
class Symmetric:
    """T_ii = 1 - mu and T_ij = mu / (C - 1) for a share of the clients (ClipFL, RHFL)."""

    rate: float = 0.5  # mu; ClipFL also has 0.8
    """Probability that a label of a noisy client is wrong."""
    noisy_fraction: float = 1.0  # rho; ClipFL has 0.5, its figure 11 0.3 and 0.8
    """Share of the clients that are noisy: exactly floor(rho K), chosen at random."""

    def __post_init__(self) -> None:
        _check_rates(self.rate, self.noisy_fraction)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return every label drawn from the row of its true class (sheet section 7)."""
        check_two_classes(classes, "symmetric")
        is_noisy = choose_noisy(len(split.clients), self.noisy_fraction, rngs)

        def flip(client: int, true: np.ndarray) -> Drawn:
            if not is_noisy[client]:
                return Drawn(true, 0.0)
            rng = _after_choice(rngs, client)
            picked = np.flatnonzero(rng.random(len(true)) < self.rate)
            return Drawn(to_other_class(true, picked, classes, rng), self.rate)

        return for_each(labels, split, flip)


@NOISE.register("asymmetric")
@settings
class Asymmetric:
    """Each class is taken for one other, for a share of the clients (pair flips, class maps)."""

    rate: float = 0.4
    """Probability that a label of a noisy client is wrong, where its class is flipped at all."""
    noisy_fraction: float = 1.0
    """Share of the clients that are noisy: exactly floor(rho K), chosen at random."""
    class_map: ClassMap = "previous"
    """What a class is taken for. previous: y - 1 (FedRN, FedLSR); next: y + 1 (Co-teaching, RHFL),
    both in a circle; mnist, cifar10: look-alikes; cifar100: next of its superclass (Patrini)."""
    pairs: tuple[tuple[int, int], ...] = ()
    """[true class, given class] pairs of your own, instead of ``class_map``."""

    def __post_init__(self) -> None:
        _check_rates(self.rate, self.noisy_fraction)
        sources = [source for source, _ in self.pairs]
        known = len(sources) == len(set(sources))
        check(known, "pairs", "must name each true class once", got=self.pairs)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels of which ``rate`` are those of the mapped class (sheet section 8)."""
        check_two_classes(classes, "asymmetric")
        targets = map_targets(self.class_map, self.pairs, classes)
        is_noisy = choose_noisy(len(split.clients), self.noisy_fraction, rngs)

        def flip(client: int, true: np.ndarray) -> Drawn:
            if not is_noisy[client]:
                return Drawn(true, 0.0)
            rng = _after_choice(rngs, client)
            picked = np.flatnonzero(rng.random(len(true)) < self.rate)
            return Drawn(to_mapped_class(true, picked, targets), self.rate)

        return for_each(labels, split, flip)


def choose_noisy(clients: int, fraction: float, rngs: ClientStreams) -> np.ndarray:
    """Return which floor(fraction K) clients are noisy, (K,) bool, any set equally likely.

    Those with the smallest first numbers of their own streams: an exact count without a stream
    that all share.
    """
    lots = np.array([rngs(client).random() for client in range(clients)])
    is_noisy = np.zeros(clients, dtype=np.bool_)
    is_noisy[np.argsort(lots, kind="stable")[: floor_share(fraction, clients)]] = True
    return is_noisy


def _after_choice(rngs: ClientStreams, client: int) -> np.random.Generator:
    """Return the client's stream behind the number that ``choose_noisy`` took."""
    rng = rngs(client)
    rng.random()
    return rng


def _check_rates(rate: float, noisy_fraction: float) -> None:
    check(0.0 <= rate <= 1.0, "rate", "must be in [0, 1]", got=rate)
    got = noisy_fraction
    check(0.0 <= got <= 1.0, "noisy_fraction", "must be in [0, 1]", got=got)

"""Label noise: what the clients are given instead of the true labels of their samples.

Every client draws from its own random stream, so its noise does not depend on who else takes part.
Sizes are counted after impurity, and true labels never leave the driver.
"""
# n samples of one client, K clients

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from raysim.data.partition import Split, floor_share
from raysim.errors import ConfigError, DataError
from raysim.settings import Registry, check, settings

ClientStreams = Callable[[int], np.random.Generator]
"""A client's own random stream."""


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """Given labels of every client, and how they came about (for the evaluator only)."""

    given: tuple[np.ndarray, ...]
    """Labels in the order of ``Split.clients``, int64."""
    rate: np.ndarray
    """_Drawn noise level of each client (alpha_k), (K,) float64."""
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


NOISE: Registry[Noise] = Registry("noise model", key="kind", home="raysim.data.noise")


@NOISE.register("none")
@settings
class NoNoise:
    """True labels."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return the true labels."""
        return _for_each(labels, split, lambda client, true: _Drawn(true, 0.0))


@NOISE.register("class_independent")
@settings
class ClassIndependent:
    """A share of each client's samples gets one label of another task (FB-NLL II-A)."""

    rate: float = 0.25
    """Share of a client's samples that are flipped (alpha; FB-NLL section V)."""

    def __post_init__(self) -> None:
        """Check the rate."""
        check(0.0 <= self.rate < 1.0, "rate", "must be in [0, 1)", got=self.rate)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels with floor(alpha n) samples of any class flipped (sheet section 4)."""
        _check_other_task(split, "class_independent")

        def flip(client: int, true: np.ndarray) -> _Drawn:
            rng = rngs(client)
            target = rng.choice(_other_classes(split, client))
            # A foreign sample may have the target label already: then the flip is without effect.
            picked = rng.choice(len(true), floor_share(self.rate, len(true)), replace=False)
            return _to_target(true, picked, target=int(target), rate=self.rate)

        return _for_each(labels, split, flip)


@NOISE.register("class_dependent")
@settings
class ClassDependent:
    """The same share, taken from one class of the task, then from the next (FB-NLL II-A)."""

    rate: float = 0.25
    """Share of a client's samples that are flipped (alpha; FB-NLL section V)."""

    def __post_init__(self) -> None:
        """Check the rate."""
        check(0.0 <= self.rate < 1.0, "rate", "must be in [0, 1)", got=self.rate)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels with floor(alpha n) samples flipped class by class (sheet section 4)."""
        _check_other_task(split, "class_dependent")

        def flip(client: int, true: np.ndarray) -> _Drawn:
            rng = rngs(client)
            target = rng.choice(_other_classes(split, client))
            sources = rng.permutation(split.tasks[split.task_of[client]])
            budget = floor_share(self.rate, len(true))
            # Whole classes in random order, samples of a class in random order, cut at the budget.
            line = [rng.permutation(np.flatnonzero(true == source)) for source in sources]
            picked = np.concatenate(line)[:budget]
            return _to_target(true, picked, target=int(target), rate=self.rate)

        return _for_each(labels, split, flip)


@NOISE.register("uniform")
@settings
class Uniform:
    """Some clients have labels redrawn from all classes, each at its own level (FB-NLL II-B)."""

    rho: float = 0.4
    """Probability that a client is noisy (FB-NLL section V)."""
    beta: float = 0.2
    """Lowest noise level of a noisy client (FB-NLL section V; tau in FedCorr)."""
    exact_count: bool = False
    """Select floor(alpha_k n) samples, not each with probability alpha_k (FB-NLL says both)."""
    exclude_true: bool = False
    """Draw the new label from the other classes only; otherwise 1 / C of the draws are right."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(0.0 <= self.rho <= 1.0, "rho", "must be in [0, 1]", got=self.rho)
        check(0.0 <= self.beta < 1.0, "beta", "must be in [0, 1)", got=self.beta)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels redrawn at rate alpha_k = Bernoulli(rho) U(beta, 1) (sheet section 5)."""

        def flip(client: int, true: np.ndarray) -> _Drawn:
            rng = rngs(client)
            is_noisy, level = rng.random() < self.rho, rng.uniform(self.beta, 1.0)
            if not is_noisy:
                return _Drawn(true, 0.0)
            picked = self._pick(level, len(true), rng)
            given = true.copy()
            if self.exclude_true:
                given[picked] = (true[picked] + rng.integers(1, classes, len(picked))) % classes
            else:
                given[picked] = rng.integers(classes, size=len(picked))
            return _Drawn(given, level)

        return _for_each(labels, split, flip)

    def _pick(self, level: float, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.exact_count:
            return rng.choice(count, floor_share(level, count), replace=False)
        return np.flatnonzero(rng.random(count) < level)


@NOISE.register("file")
@settings
class FileNoise:
    """The given labels of a split file (``raysim.data.split_file``)."""

    path: str | None = None
    """The split file; null: the one the partition came from."""

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return the stored labels if they belong to the samples of ``split``; nothing is drawn."""
        from raysim.data.split_file import read_split  # split_file imports NoisyLabels from here

        path = self.path or split.source
        if not path:
            raise ConfigError(
                "data.noise.path must name a split file when data.partition.kind is not file, got "
                "null; set it, or set data.partition.kind to file"
            )
        stored = read_split(path, setting="data.noise.path")
        if not _same_ids(stored.split, split):
            raise ConfigError(
                f"data.noise.path: split file {path} holds labels of {len(stored.split.clients)} "
                f"clients with other samples than the {len(split.clients)} of this partition; use "
                "that file as data.partition too, or the settings and seed it was made with"
            )
        used = np.concatenate(stored.given)
        if used.min() < 0 or used.max() >= classes:
            raise DataError(
                f"split file {path} must hold labels in 0..{classes - 1}, got "
                f"{used.min()}..{used.max()}; use the dataset it was made from"
            )
        return NoisyLabels(
            given=stored.given,
            rate=stored.rate,
            realised=_realised(labels, split, stored.given),
            is_noisy=stored.is_noisy,
            target=stored.target,
        )


def check_noise(noisy: NoisyLabels, labels: np.ndarray, split: Split, *, classes: int) -> None:
    """Refuse labels that contradict what ``noisy`` says of them (sheet section 12)."""
    for k, (ids, given) in enumerate(zip(split.clients, noisy.given, strict=True)):
        true = labels[ids]
        _require(len(given) == len(true), k, f"{len(given)} labels for {len(true)} samples")
        changed = given != true
        _require(given.dtype == np.int64, k, f"labels of type {given.dtype}")
        _require(given.min() >= 0 and given.max() < classes, k, "a label that is no class")
        _require(noisy.realised[k] == changed.mean(), k, f"realised noise {noisy.realised[k]}")
        _require(noisy.is_noisy[k] or not changed.any(), k, "wrong labels but is called clean")
        target = int(noisy.target[k])
        if target >= 0:
            task = split.tasks[split.task_of[k]]
            _require(target not in task, k, f"target {target} inside its task {task}")
            _require(bool((given[changed] == target).all()), k, f"flips beside target {target}")


def check_sources(noisy: NoisyLabels, labels: np.ndarray, split: Split) -> None:
    """Refuse flips from more than ceil(alpha n / smallest class) + 1 classes (section 12)."""
    for k, (ids, given) in enumerate(zip(split.clients, noisy.given, strict=True)):
        true = labels[ids]
        task = split.tasks[split.task_of[k]]
        sources = np.unique(true[given != true])
        _require(set(sources.tolist()) <= set(task), k, f"flips from {sources}, task {task}")
        smallest = min(n for c in task if (n := np.count_nonzero(true == c)))
        most = math.ceil(noisy.rate[k] * len(true) / smallest) + 1
        _require(len(sources) <= most, k, f"flips from {len(sources)} classes, at most {most}")


def check_level(noisy: NoisyLabels, *, wrong_fraction: float) -> None:
    """Refuse realised noise away from ``wrong_fraction`` of the drawn level (section 12).

    ``wrong_fraction`` is (C - 1) / C for labels redrawn from all classes, 1 if the true one is
    excluded. All clients together stay within 3 sigma; a single one within 5, since among
    thousands of clients some pass 3 by chance.
    """
    sizes = np.array([len(given) for given in noisy.given], dtype=np.float64)
    p = noisy.rate * wrong_fraction
    off, variance = sizes * (noisy.realised - p), sizes * p * (1.0 - p)
    _require(off.sum() ** 2 <= 9.0 * variance.sum() + 1e-9, -1, f"{off.sum():+.1f} flips too many")
    for k in np.flatnonzero(off**2 > 25.0 * variance + 1e-9):
        _require(False, int(k), f"realised noise {noisy.realised[k]:.3f}, expected {p[k]:.3f}")


@dataclass(frozen=True)
class _Drawn:
    """One client's given labels, its drawn level and its target label."""

    given: np.ndarray
    rate: float
    target: int = -1


def _for_each(
    labels: np.ndarray, split: Split, flip: Callable[[int, np.ndarray], _Drawn]
) -> NoisyLabels:
    """Return what ``flip(client, true labels)`` gives for every client."""
    drawn = [flip(k, labels[ids].astype(np.int64)) for k, ids in enumerate(split.clients)]
    given = tuple(d.given for d in drawn)
    rate = np.array([d.rate for d in drawn], dtype=np.float64)
    return NoisyLabels(
        given=given,
        rate=rate,
        realised=_realised(labels, split, given),
        is_noisy=rate > 0.0,
        target=np.array([d.target for d in drawn], dtype=np.int64),
    )


def _to_target(true: np.ndarray, picked: np.ndarray, *, target: int, rate: float) -> _Drawn:
    given = true.copy()
    given[picked] = target
    return _Drawn(given, rate, target if len(picked) else -1)


def _realised(labels: np.ndarray, split: Split, given: tuple[np.ndarray, ...]) -> np.ndarray:
    pairs = zip(split.clients, given, strict=True)
    return np.array([np.mean(labels[ids] != y) for ids, y in pairs], dtype=np.float64)


def _other_classes(split: Split, client: int) -> list[int]:
    """Return the classes of every task but the client's (T without tau_k)."""
    return sorted(
        c for m, task in enumerate(split.tasks) if m != split.task_of[client] for c in task
    )


def _check_other_task(split: Split, kind: str) -> None:
    if len(split.tasks) < 2:
        raise ConfigError(
            f"data.noise.kind {kind} flips labels to a class outside the client's task, got a "
            f"single task of {len(split.tasks[0])} classes; raise data.partition.groups to 2 or "
            "more, or set data.noise.kind to uniform"
        )


def _same_ids(stored: Split, split: Split) -> bool:
    return len(stored.clients) == len(split.clients) and all(
        map(np.array_equal, stored.clients, split.clients)
    )


def _require(ok: bool, client: int, found: str) -> None:
    if not ok:
        who = f"client {client}" if client >= 0 else "all clients together"
        raise DataError(
            f"given labels contradict their noise model: {who} got {found}; draw them again"
        )

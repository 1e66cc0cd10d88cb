"""Flips to a class of another task (FB-NLL, RCC-PFL)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from raysim.data.noise.labels import NOISE, ClientStreams, Drawn, NoisyLabels, for_each
from raysim.data.partition import Split, floor_share
from raysim.errors import ConfigError
from raysim.settings import check, settings


@settings
class _TaskFlips(ABC):
    """A share of each client's samples gets one label of another task."""

    rate: float = 0.25
    """Share of a client's samples that are flipped (alpha; FB-NLL section V)."""
    choice_name: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the rate."""
        check(0.0 <= self.rate < 1.0, "rate", "must be in [0, 1)", got=self.rate)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels with floor(alpha n) samples flipped (sheet section 4)."""
        _check_other_task(split, self.choice_name)

        def flip(client: int, true: np.ndarray) -> Drawn:
            rng = rngs(client)
            target = rng.choice(_other_classes(split, client))
            task = split.tasks[split.task_of[client]]
            picked = self.pick(true, floor_share(self.rate, len(true)), task, rng)
            return _to_target(true, picked, target=int(target), rate=self.rate)

        return for_each(labels, split, flip)

    @abstractmethod
    def pick(
        self, true: np.ndarray, budget: int, task: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        """Return the positions of ``budget`` samples to flip."""


@NOISE.register("class_independent")
@settings
class ClassIndependent(_TaskFlips):
    """A share of each client's samples gets one label of another task (FB-NLL II-A)."""

    def pick(
        self, true: np.ndarray, budget: int, task: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        """Return samples of any class.

        A foreign one may have the target label already: then the flip is without effect.
        """
        return rng.choice(len(true), budget, replace=False)


@NOISE.register("class_dependent")
@settings
class ClassDependent(_TaskFlips):
    """The same share, taken from one class of the task, then from the next (FB-NLL II-A)."""

    def pick(
        self, true: np.ndarray, budget: int, task: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        """Return whole classes in random order, each in random order, cut at the budget."""
        line = [rng.permutation(np.flatnonzero(true == c)) for c in rng.permutation(task)]
        return np.concatenate(line)[:budget]


def _to_target(true: np.ndarray, picked: np.ndarray, *, target: int, rate: float) -> Drawn:
    given = true.copy()
    given[picked] = target
    return Drawn(given, rate, target if len(picked) else -1)


def _other_classes(split: Split, client: int) -> list[int]:
    """Return the classes of every task but the client's (T without tau_k)."""
    return sorted(
        c for m, task in enumerate(split.tasks) if m != split.task_of[client] for c in task
    )


def _check_other_task(split: Split, kind: str) -> None:
    if len(split.tasks) < 2:
        raise ConfigError(
            f"data.noise.kind {kind} flips labels to a class outside the client's task, got a "
            f"single task of {len(split.tasks[0])} classes; use data.partition.kind tasks with "
            "groups of 2 or more, or set data.noise.kind to uniform"
        )

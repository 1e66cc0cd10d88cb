"""Flips to a class of another task (FB-NLL section II-A, RCC-PFL section III)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

import numpy as np

from raysim.data.noise.labels import NOISE, Flips, Holder, NoiseKind
from raysim.data.partition import Split, floor_share
from raysim.errors import ConfigError
from raysim.settings import In, settings


@settings
class TaskFlips(NoiseKind):
    """A share of each client's samples gets one label of another task."""

    rate: Annotated[float, In("[0, 1)")] = 0.25
    """Share of a client's samples that are flipped (alpha; FB-NLL section V)."""

    def check_fits(self, split: Split, classes: int) -> None:
        if len(split.tasks) < 2:
            raise ConfigError(
                f"data.noise.kind {self.choice_name} flips labels to a class outside the client's "
                f"task, got a single task of {len(split.tasks[0])} classes; use "
                "data.partition.kind tasks with groups of 2 or more, or set data.noise.kind to "
                "uniform"
            )

    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        """Flip floor(alpha n) samples to one class of T without tau_k."""
        foreign = sorted({c for task in client.split.tasks for c in task} - {*client.task})
        target = int(rng.choice(foreign))
        picked = self.pick(true, floor_share(self.rate, len(true)), client.task, rng)
        return Flips(picked, target, self.rate, target if len(picked) else -1)

    @abstractmethod
    def pick(
        self, true: np.ndarray, budget: int, task: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        """Return the positions of ``budget`` samples to flip."""


@NOISE.register("class_independent")
@settings
class ClassIndependent(TaskFlips):
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
class ClassDependent(TaskFlips):
    """As class_independent, but the samples come from one class of the task, then from the next."""

    def pick(
        self, true: np.ndarray, budget: int, task: tuple[int, ...], rng: np.random.Generator
    ) -> np.ndarray:
        """Return whole classes in random order, each in random order, cut at the budget."""
        line = [rng.permutation(np.flatnonzero(true == c)) for c in rng.permutation(task)]
        return np.concatenate(line)[:budget]

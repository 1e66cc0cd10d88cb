"""How a wrong label is chosen: any other class, or the one that is taken for it."""
# n samples of one client, C classes

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from raysim.data.datasets.class_names import CIFAR100_SUPERCLASSES
from raysim.errors import ConfigError

ClassMap = Literal["previous", "next", "mnist", "cifar10", "cifar100"]

_PAIRS: dict[str, tuple[tuple[int, int], ...]] = {
    # Patrini et al., CVPR 2017; partitions_and_noise.md section 11
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


def to_other_class(
    true: np.ndarray, picked: np.ndarray, classes: int, rng: np.random.Generator
) -> np.ndarray:
    """Return labels whose ``picked`` ones are redrawn from the C - 1 other classes."""
    given = true.copy()
    given[picked] = (true[picked] + rng.integers(1, classes, len(picked))) % classes
    return given


def to_mapped_class(true: np.ndarray, picked: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return labels whose ``picked`` ones are replaced by ``targets`` (C,) of their class."""
    given = true.copy()
    given[picked] = targets[true[picked]]
    return given


def map_targets(class_map: ClassMap, pairs: Sequence[tuple[int, int]], classes: int) -> np.ndarray:
    """Return what each class is flipped to, (C,) int64; itself: it is not flipped."""
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


def check_two_classes(classes: int, kind: str) -> None:
    """Refuse a dataset in which there is no wrong label."""
    if classes < 2:
        raise ConfigError(
            f"data.noise.kind {kind} needs two classes or more, got {classes}; "
            "set data.noise.kind to none"
        )

"""Clients that exist as features only: what the similarity benchmark runs on, at any K.

Rows are made on demand from the client's number, so that K = 10,000 clients cost no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

CLASSES, GROUPS = 10, 3


@dataclass(frozen=True)
class FeatureSpec:
    """A ``WorldSpec``: clients k of group k mod 3 with ``samples`` rows of ``dim`` numbers."""

    samples: int
    dim: int

    def open(self) -> FeatureWorld:
        """Return the world."""
        return FeatureWorld(self)


class FeatureWorld:
    """A ``World`` with features and nothing else."""

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec

    def features(self, use: str, sample_ids: np.ndarray) -> np.ndarray:
        """Return the rows of ``sample_ids``; client k holds ids k * samples and following."""
        owners, places = np.divmod(np.asarray(sample_ids), self._spec.samples)
        rows = np.empty((len(owners), self._spec.dim), np.float32)
        for client in np.unique(owners):
            own = owners == client
            rows[own] = client_features(self._spec, int(client))[places[own]]
        return rows

    def images(self, sample_ids: np.ndarray) -> np.ndarray:
        """Refuse: there are no images here."""
        raise LookupError("this world has features only; ask for features")

    def test_set(self, classes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Refuse: there are no images here."""
        raise LookupError("this world has features only; ask for features")


def client_features(spec: FeatureSpec, client: int) -> np.ndarray:
    """Return the rows of one client: samples of its group's classes, each near its subspace."""
    from raysim.data.partition import classes_in_order
    from raysim.seeding import stream

    rng = stream(0, "bench features", client)
    classes = classes_in_order(CLASSES, GROUPS)[client % GROUPS]
    labels = rng.choice(np.array(classes), spec.samples)
    rows = 0.1 * rng.standard_normal((spec.samples, spec.dim), dtype=np.float32)
    for label in classes:
        own = np.flatnonzero(labels == label)
        basis = class_basis(spec.dim, label)
        inside = rng.standard_normal((len(own), basis.shape[1]), dtype=np.float32)
        inside[:, 0] += 2.0
        rows[own] += inside @ basis.T
    return rows


@lru_cache(maxsize=CLASSES)
def class_basis(dim: int, label: int) -> np.ndarray:
    """Return the class subspace of raysim's synthetic dataset."""
    from raysim.data.datasets.synthetic import Synthetic

    return Synthetic(classes=CLASSES, dim=dim).basis(label)

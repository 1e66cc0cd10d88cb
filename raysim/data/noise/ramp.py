"""Noise that grows from client to client (FedRN; partitions_and_noise.md section 8)."""
# n samples of one client, K clients

from __future__ import annotations

from typing import Literal

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


@NOISE.register("ramp")
@settings
class Ramp:
    """Noise grows linearly from client to client; symmetric, asymmetric or mixed flips (FedRN)."""

    low: float = 0.0
    """Share of wrong labels of the first client."""
    high: float = 0.4  # FedRN also has 0.8
    """Share that a client after the last would have: 0.0 to 0.4 over 100 clients ends at 0.396."""
    flips: Literal["symmetric", "asymmetric", "mixed"] = "symmetric"
    """symmetric: to any other class; asymmetric: by ``class_map``; mixed: the first half of the
    clients symmetric, the second asymmetric, each half with a ramp of its own."""
    class_map: ClassMap = "previous"
    """What a class is taken for (see noise asymmetric)."""

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            got = getattr(self, name)
            check(0.0 <= got <= 1.0, name, "must be in [0, 1]", got=got)

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels of which exactly floor(rate_i n_i) are wrong in client i."""
        check_two_classes(classes, "ramp")
        targets = map_targets(self.class_map, (), classes)
        clients = len(split.clients)
        rates, num_symmetric = self.rates(clients), self._num_symmetric(clients)

        def flip(client: int, true: np.ndarray) -> Drawn:
            rng, rate = rngs(client), float(rates[client])
            picked = rng.permutation(len(true))[: floor_share(rate, len(true))]
            if client < num_symmetric:
                return Drawn(to_other_class(true, picked, classes, rng), rate)
            return Drawn(to_mapped_class(true, picked, targets), rate)

        return for_each(labels, split, flip)

    def rates(self, clients: int) -> np.ndarray:
        """Return rate_i = low + i (high - low) / K of every client, (K,)."""
        first = self._num_symmetric(clients)
        sizes = [first, clients - first] if self.flips == "mixed" else [clients]
        steps = [np.arange(size) / size for size in sizes if size]
        return self.low + np.concatenate(steps) * (self.high - self.low)

    def _num_symmetric(self, clients: int) -> int:
        return {"symmetric": clients, "asymmetric": 0, "mixed": clients // 2}[self.flips]

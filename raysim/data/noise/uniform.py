"""Labels redrawn from all classes at a level of the client's own (FB-NLL, FedCorr, FedFixer)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from raysim.data.noise.labels import NOISE, Flips, Holder, NoiseKind, other_classes
from raysim.data.partition import floor_share
from raysim.settings import In, check, settings


@NOISE.register("uniform")
@settings
class Uniform(NoiseKind):
    """Some clients redraw labels from all classes, each at its level (FB-NLL, FedCorr, FedFixer).

    FB-NLL section II-B. FedCorr's and FedFixer's noise (rho, tau) is the same with beta = tau.
    """

    rho: Annotated[float, In("[0, 1]")] = 0.4
    """Probability that a client is noisy (FB-NLL section V)."""
    beta: Annotated[float, In("[0, 1)")] = 0.2
    """Lowest noise level of a noisy client (FB-NLL section V; tau in FedCorr)."""
    exact_count: bool = False
    """Select floor(alpha_k n) samples, not each with probability alpha_k (FB-NLL says both)."""
    exclude_true: bool = False
    """Draw the new label from the other classes only; otherwise 1 / C of the draws are right."""
    first_classes: Annotated[int | None, In("[1, inf)")] = None
    """Draw new labels from the first n classes only; null: from all. FedCorr's released code draws
    from 10 classes on CIFAR-100 too, which its table shows."""

    def __post_init__(self) -> None:
        first = self.first_classes
        check(
            first is None or not self.exclude_true,
            "first_classes",
            "cannot be set with exclude_true",
            got=first,
            do="leave one of them out",
        )

    def noisy_clients(self, streams: Sequence[np.random.Generator]) -> np.ndarray:
        """Return Bernoulli(rho) of every client (FB-NLL Eq. 1)."""
        return np.array([rng.random() < self.rho for rng in streams])

    def flip(self, true: np.ndarray, client: Holder, rng: np.random.Generator) -> Flips:
        """Redraw labels at level alpha_k = U(beta, 1) (FB-NLL Eq. 1)."""
        level, count = rng.uniform(self.beta, 1.0), len(true)
        if self.exact_count:
            picked = rng.choice(count, floor_share(level, count), replace=False)
        else:
            picked = np.flatnonzero(rng.random(count) < level)
        if self.exclude_true:
            return Flips(picked, other_classes(true[picked], client.classes, rng), level)
        top = min(self.first_classes or client.classes, client.classes)
        return Flips(picked, rng.integers(top, size=len(picked)), level)

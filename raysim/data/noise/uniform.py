"""Labels redrawn from all classes at a level of the client's own (FB-NLL, FedCorr, FedFixer)."""

from __future__ import annotations

import numpy as np

from raysim.data.noise.labels import NOISE, ClientStreams, Drawn, NoisyLabels, for_each
from raysim.data.partition import Split, floor_share
from raysim.settings import check, settings


@NOISE.register("uniform")
@settings
class Uniform:
    """Some clients redraw labels from all classes, each at its level (FB-NLL, FedCorr, FedFixer).

    FB-NLL section II-B. FedCorr's and FedFixer's noise (rho, tau) is the same with beta = tau.
    """

    rho: float = 0.4
    """Probability that a client is noisy (FB-NLL section V)."""
    beta: float = 0.2
    """Lowest noise level of a noisy client (FB-NLL section V; tau in FedCorr)."""
    exact_count: bool = False
    """Select floor(alpha_k n) samples, not each with probability alpha_k (FB-NLL says both)."""
    exclude_true: bool = False
    """Draw the new label from the other classes only; otherwise 1 / C of the draws are right."""
    first_classes: int | None = None
    """Draw new labels from the first n classes only; null: from all. FedCorr's released code draws
    from 10 classes on CIFAR-100 too, which its table shows."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(0.0 <= self.rho <= 1.0, "rho", "must be in [0, 1]", got=self.rho)
        check(0.0 <= self.beta < 1.0, "beta", "must be in [0, 1)", got=self.beta)
        first = self.first_classes
        check(first is None or first >= 1, "first_classes", "must be at least 1", got=first)
        check(
            first is None or not self.exclude_true,
            "first_classes",
            "cannot be set with exclude_true",
            got=first,
            do="leave one of them out",
        )

    def corrupt(
        self, labels: np.ndarray, split: Split, *, classes: int, rngs: ClientStreams
    ) -> NoisyLabels:
        """Return labels redrawn at rate alpha_k = Bernoulli(rho) U(beta, 1) (sheet section 5)."""
        top = classes if self.first_classes is None else min(self.first_classes, classes)

        def flip(client: int, true: np.ndarray) -> Drawn:
            rng = rngs(client)
            is_noisy, level = rng.random() < self.rho, rng.uniform(self.beta, 1.0)
            if not is_noisy:
                return Drawn(true, 0.0)
            picked = self._pick(level, len(true), rng)
            given = true.copy()
            if self.exclude_true:
                given[picked] = (true[picked] + rng.integers(1, classes, len(picked))) % classes
            else:
                given[picked] = rng.integers(top, size=len(picked))
            return Drawn(given, level)

        return for_each(labels, split, flip)

    def _pick(self, level: float, count: int, rng: np.random.Generator) -> np.ndarray:
        if self.exact_count:
            return rng.choice(count, floor_share(level, count), replace=False)
        return np.flatnonzero(rng.random(count) < level)

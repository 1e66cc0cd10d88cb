"""Which labels are right, judged by losses and by past predictions. N samples, C classes, Q past.

Small losses (Co-teaching), two Gaussians over scaled losses (DivideMix, FedRN), histories of
predictions (SELFIE, Joint Optimisation); noisy_label_losses.md.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

ROUNDING = 1e-9
"""(1 - 0.9) * 10 is 0.99... in binary."""


def small_loss(losses: np.ndarray, rate: float) -> np.ndarray:
    """Return which floor((1 - rate) N) losses (N,) are smallest; the lower position wins a tie."""
    return smallest(losses, math.floor((1.0 - rate) * len(losses) + ROUNDING))


def smallest(losses: np.ndarray, count: int) -> np.ndarray:
    """Return a mask (N,) of the ``count`` smallest values; the lower position wins a tie."""
    mask = np.zeros(len(losses), dtype=bool)
    mask[np.argsort(losses, kind="stable")[:count]] = True
    return mask


def unit_range(values: np.ndarray) -> np.ndarray:
    """Return the values (N,) moved and scaled into [0, 1]; 0.5 where all are equal."""
    values = np.asarray(values, dtype=np.float64)
    if not len(values) or np.ptp(values) == 0:
        return np.full(len(values), 0.5)
    scaled: np.ndarray = (values - values.min()) / np.ptp(values)
    return scaled


def clean_posterior(losses: np.ndarray, *, seed: int = 0, steps: int = 100) -> np.ndarray:
    """Return how probably each loss (N,) is of the Gaussian of smaller mean, of a mixture of two.

    Losses are scaled to [0, 1] first; ``steps`` of expectation-maximisation at most. 1 where they
    cannot be told apart (fewer than two, or all equal): nothing speaks against these labels.
    """
    scaled = unit_range(losses)
    if len(scaled) < 2 or np.ptp(scaled) == 0:
        return np.ones(len(scaled))
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    mixture = GaussianMixture(
        n_components=2, max_iter=steps, tol=1e-2, reg_covar=5e-4, random_state=seed
    )
    with threadpool_limits(limits=1), warnings.catch_warnings():  # one: see upper_component
        warnings.simplefilter("ignore", ConvergenceWarning)  # few steps are asked for
        found: np.ndarray = mixture.fit(scaled[:, None]).predict_proba(scaled[:, None])
    return found[:, int(np.argmin(mixture.means_[:, 0]))]

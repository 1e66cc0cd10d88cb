"""Which labels are right, judged by losses and by past predictions. N samples, C classes, Q past.

Small losses (Co-teaching), losses below their mean (CORES2), two Gaussians over scaled losses
(DivideMix, FedRN), histories of predictions (SELFIE, Joint Optimisation); noisy_label_losses.md.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

LOG_FLOOR = 1e-8
"""Added to probabilities inside the mean of CORES2's losses, as in the released code."""
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


def sieved(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whose loss CE(f(x), y) is at most the mean over c of CE(f(x), c), (N,); CORES2.

    Only the mean has a floor, as in training (models/losses.py).
    """
    from scipy.special import log_softmax

    log_p = log_softmax(logits, axis=1)
    expected = -np.log(np.exp(log_p) + LOG_FLOOR).mean(axis=1)
    kept: np.ndarray = -log_p[np.arange(len(labels)), labels] <= expected
    return kept


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


# ---- past predictions, oldest first --------------------------------------------------------------

EMPTY = -1
"""In a history of labels (N, Q): no prediction yet. In one of probabilities: zeros."""


def appended(history: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the history (N, Q, ...) without its oldest entry and with ``values`` (N, ...) last."""
    return np.concatenate([history[:, 1:], values[:, None].astype(history.dtype)], axis=1)


def mean_prediction(history: np.ndarray) -> np.ndarray:
    """Return the mean (N, C) over what a history of probabilities (N, Q, C) holds; 0 if nothing."""
    total = history.sum(axis=1, dtype=np.float64)
    filled = (history.sum(axis=2) > 0).sum(axis=1)  # a prediction sums to one
    means: np.ndarray = total / np.maximum(filled, 1)[:, None]
    return means


def label_uncertainty(history: np.ndarray, classes: int) -> np.ndarray:
    """Return F (N,), the entropy of past labels (N, Q) over log C (SELFIE, Eq. 3).

    Infinite where fewer than Q predictions were made.
    """
    shares = _label_counts(history, classes) / history.shape[1]
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy = -(shares * logs).sum(axis=1) / max(math.log(classes), ROUNDING)
    return np.where((history == EMPTY).any(axis=1), np.inf, np.maximum(entropy, 0.0))


def majority(history: np.ndarray, classes: int) -> np.ndarray:
    """Return the most frequent past label (N,); of several the one that was predicted first."""
    counts = _label_counts(history, classes)
    often = np.take_along_axis(counts, np.maximum(history, 0), axis=1) * (history != EMPTY)
    first = often.argmax(axis=1)
    found: np.ndarray = history[np.arange(len(history)), first]
    return found


def _label_counts(history: np.ndarray, classes: int) -> np.ndarray:
    counts: np.ndarray = (history[:, :, None] == np.arange(classes)).sum(axis=1)
    return counts

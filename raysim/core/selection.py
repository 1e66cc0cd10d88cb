"""Sample selection: which labels are right, judged by losses.

Small losses (Co-teaching, SELFIE, Robust FL), the sample sieve (CORES2, FedFixer Eq. 3), the GMM
over scaled losses (FedRN Eq. 6, DivideMix). Formulas: the papers' pages in raysim/docs/sheets. N
samples, C classes, Q past predictions.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from raysim.core.threads import one_thread

LOG_FLOOR = 1e-8
"""Added to probabilities inside the mean of CORES2's losses, as in the released code."""
ROUNDING = 1e-9
"""Rounding error to forgive: (1 - 0.9) * 10 is 0.99... in binary."""


def small_loss(losses: np.ndarray, rate: float) -> np.ndarray:
    """Return which floor((1 - rate) N) losses (N,) are smallest: the small-loss trick.

    The lower position wins a tie. Co-teaching: R(t) = (1 - eps_t) B.
    """
    return smallest(losses, math.floor((1.0 - rate) * len(losses) + ROUNDING))


def smallest(losses: np.ndarray, count: int) -> np.ndarray:
    """Return a mask (N,) of the ``count`` smallest values; the lower position wins a tie."""
    mask = np.zeros(len(losses), dtype=bool)
    mask[np.argsort(losses, kind="stable")[:count]] = True
    return mask


def sieved(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whose CE(f(x), y) is at most the mean over c of CE(f(x), c), (N,).

    The sample sieve of CORES2, FedFixer Eq. 3 (which prints <). Only the mean has a floor, as in
    training (``methods.cores2.confident_loss``).
    """
    from scipy.special import log_softmax

    log_p = log_softmax(logits, axis=1)
    expected = -np.log(np.exp(log_p) + LOG_FLOOR).mean(axis=1)
    kept: np.ndarray = -log_p[np.arange(len(labels)), labels] <= expected
    return kept


def unit_range(values: np.ndarray) -> np.ndarray:
    """Return the values (N,) min-max scaled to [0, 1]; 0.5 where all are equal (FedRN Eq. 4)."""
    values = np.asarray(values, dtype=np.float64)
    if not len(values) or np.ptp(values) == 0:
        return np.full(len(values), 0.5)
    scaled: np.ndarray = (values - values.min()) / np.ptp(values)
    return scaled


def clean_posterior(losses: np.ndarray, *, seed: int = 0, steps: int = 100) -> np.ndarray:
    """Return p(g | loss) (N,), the posterior of the smaller-mean Gaussian of a GMM (FedRN Eq. 6).

    Losses are scaled to [0, 1] first; EM runs for at most ``steps``. 1 where losses cannot be told
    apart (fewer than two, or all equal): nothing speaks against these labels.
    """
    scaled = unit_range(losses)
    if len(scaled) < 2 or np.ptp(scaled) == 0:
        return np.ones(len(scaled))
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(
        n_components=2, max_iter=steps, tol=1e-2, reg_covar=5e-4, random_state=seed
    )
    with one_thread(), warnings.catch_warnings():  # k-means adds over threads
        warnings.simplefilter("ignore", ConvergenceWarning)  # few steps are asked for
        posterior: np.ndarray = mixture.fit(scaled[:, None]).predict_proba(scaled[:, None])
    return posterior[:, int(np.argmin(mixture.means_[:, 0]))]


def appended(history: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the history (N, Q, ...) without its oldest entry and with ``values`` (N, ...) last.

    Past predictions of SELFIE (labels) and Joint Optimisation (probabilities).
    """
    return np.concatenate([history[:, 1:], values[:, None].astype(history.dtype)], axis=1)

"""How much clients trust each other's predictions (RHFL, section 3.3)."""

from __future__ import annotations

import numpy as np

TINY = 1e-12


def confidence_weights(losses: np.ndarray, previous: np.ndarray, *, factor: float) -> np.ndarray:
    """Return w (N,), the weight of what comes FROM each client.

    First round: 1/(N - 1). Later: q = (L(t-1) - L(t)) / L(t), u = 1/(N-1) + eta q / sum |q|,
    w = softmax(u). The released code divides by sum q, which may vanish or change sign; RHFL+ and
    this code divide by sum |q|. ``previous`` is nan for who has no earlier loss: then q = 0.
    """
    count = len(losses)
    if count < 2:
        return np.zeros(count)
    share = np.full(count, 1.0 / (count - 1))
    is_known = ~np.isnan(previous)
    if not is_known.any():
        return share
    quality = np.where(is_known, previous - losses, 0.0) / np.maximum(losses, TINY)
    raw = share + factor * quality / (np.abs(quality).sum() + TINY)
    weights: np.ndarray = np.exp(raw - raw.max())
    return weights / weights.sum()


def others_mixture(probabilities: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return, for each of N clients, sum over the OTHERS of w_i p_i: (N, B, C) from (N, B, C).

    sum_i w_i KL(p_i || p) differs from the cross-entropy with this mixture by a constant.
    """
    weighted = weights[:, None, None] * probabilities
    mixture: np.ndarray = weighted.sum(axis=0) - weighted
    return mixture

"""How reliable other clients are as judges of one's samples (FedRN, Eq. 2-5). N clients."""

from __future__ import annotations

import numpy as np

from raysim.core.selection import unit_range


def reliability(
    expertise: np.ndarray, probes: np.ndarray, own: int, *, weight: float
) -> np.ndarray:
    """Return R(c, n) for all clients n (N,), c being the one in row ``own``.

    alpha times the expertise (N,) plus 1 - alpha times the cosine of the outputs ``probes`` (N, C)
    on one common input, both scaled to [0, 1] over the clients.
    """
    norms = np.linalg.norm(probes, axis=1)
    cosine = probes @ probes[own] / np.maximum(norms * norms[own], np.finfo(np.float64).tiny)
    alike = unit_range(cosine)
    alike[own] = 1.0
    found: np.ndarray = weight * unit_range(expertise) + (1.0 - weight) * alike
    return found


def most_reliable(scores: np.ndarray, own: int, count: int) -> np.ndarray:
    """Return the rows of the ``count`` highest scores besides ``own``; the lower row wins a tie."""
    order = np.argsort(-scores, kind="stable")
    return order[order != own][:count]


def ensemble(posteriors: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the mean of posteriors (J, N) weighted by the judges' scores (J,)."""
    total = scores.sum()
    weights = scores / total if total > 0 else np.full(len(scores), 1.0 / len(scores))
    found: np.ndarray = weights @ posteriors
    return found

"""Where to cut a distribution of losses so that what is left resembles another one (MR).

B bins of equal width, the last one open; noisy_label_losses.md section 8.
"""

from __future__ import annotations

import numpy as np


def loss_bins(losses: np.ndarray, *, largest: float, bins: int) -> np.ndarray:
    """Return the bin (N,) of each loss; what lies above ``largest`` is in the last one."""
    scaled = np.floor(np.asarray(losses, dtype=np.float64) * (bins / largest))
    return np.clip(scaled, 0, bins - 1).astype(np.int64)


def cut_distances(reference: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Return for each bin (B,) the Kolmogorov-Smirnov distance of a cut behind it.

    That is max |F_B - F_P|, F_P of the ``pooled`` counts up to the bin; infinite where there are
    none.
    """
    wanted = np.cumsum(reference) / max(reference.sum(), 1)
    total = np.cumsum(pooled)
    kept = np.minimum(total[None, :], total[:, None])  # rows: cuts
    shares = kept / np.maximum(total, 1)[:, None]
    return np.where(total > 0, np.abs(shares - wanted).max(axis=1), np.inf)


def closest_cut(reference: np.ndarray, pooled: np.ndarray) -> int:
    """Return the last bin to keep, so that what is kept is closest to ``reference``.

    Of several the lowest; the last bin of all where there is nothing to cut.
    """
    if not pooled.sum():
        return len(pooled) - 1
    return int(cut_distances(reference, pooled).argmin())

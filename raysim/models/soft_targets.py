"""Soft labels in torch: their cross-entropy, regularisers of predictions, sharpening, mixing.

B samples, C classes. torch is loaded when a function is called, not with this module.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def soft_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over samples of -sum_c s_c log p_c; ``targets`` s (B, C).

    Joint Optimisation's L_c, DivideMix's L_x.
    """
    return -(targets * logits.log_softmax(dim=1)).sum(dim=1).mean()


def prediction_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the mean over samples of -sum_c p_c log p_c: Joint Optimisation's L_e."""
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def prior_divergence(logits: torch.Tensor, prior: torch.Tensor | None = None) -> torch.Tensor:
    """Return KL(prior || mean prediction of the batch); ``prior`` (C,), None: uniform.

    Joint Optimisation's L_p, DivideMix's L_reg.
    """
    import torch

    count, classes = logits.shape
    prior = torch.full_like(logits[0], 1.0 / classes) if prior is None else prior
    log_mean = logits.log_softmax(dim=1).logsumexp(dim=0) - math.log(count)
    return (torch.xlogy(prior, prior) - prior * log_mean).sum()


def sharpened(probabilities: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return p^(1/T), rows normalised: the sharpening of DivideMix and FedLSR."""
    powers = probabilities ** (1.0 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


def mixed(values: torch.Tensor, order: torch.Tensor, share: float) -> torch.Tensor:
    """Return mixup: each row mixed with the row that ``order`` names; ``share`` is its own part."""
    return share * values + (1.0 - share) * values[order]

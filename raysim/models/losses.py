"""Losses besides cross-entropy, as small picklable settings that work on a batch of logits.

torch is loaded when a loss is called, not with this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.settings import check, settings

if TYPE_CHECKING:
    import torch

    from raysim.models.training import Batch

SMALLEST_TARGET = 1e-4
"""What log of a zero target is taken of, as in the released code: -log is 9.21."""
SMALLEST_PROBABILITY = 1e-7


@settings
class SymmetricCrossEntropy:
    """a CE + b RCE (RHFL, section "Losses"): reverse cross-entropy forgives wrong labels."""

    forward: float = 0.1
    """a, of the usual cross-entropy."""
    reverse: float = 1.0
    """b, of -sum_c p_c log(clipped one-hot_c)."""

    def __post_init__(self) -> None:
        for name in ("forward", "reverse"):
            value = getattr(self, name)
            check(value >= 0, name, "must not be negative", got=value, do="try 0.1 and 1.0")

    def __call__(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the mean over the batch."""
        return self.per_sample(logits, batch.labels).mean()

    def per_sample(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of every row."""
        import torch
        from torch.nn.functional import cross_entropy, one_hot

        probability = torch.softmax(logits, dim=1).clamp(SMALLEST_PROBABILITY, 1.0)
        target = one_hot(labels, logits.shape[1]).to(logits.dtype).clamp(SMALLEST_TARGET, 1.0)
        reverse = -(probability * target.log()).sum(dim=1)
        return self.forward * cross_entropy(logits, labels, reduction="none") + (
            self.reverse * reverse
        )


@settings
class SmoothedCrossEntropy:
    """Cross-entropy of softmax(z / T) with (1 - eps) one-hot + eps / C (ClipFL, section "Loss")."""

    smoothing: float = 0.1
    """eps."""
    temperature: float = 10.0
    """T; the gradient shrinks by it and is not scaled back."""

    def __post_init__(self) -> None:
        ok = 0 <= self.smoothing < 1
        check(ok, "smoothing", "must be in [0, 1)", got=self.smoothing, do="try 0.1")
        ok = self.temperature > 0
        check(ok, "temperature", "must be above 0", got=self.temperature, do="1 is the usual CE")

    def __call__(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the mean over the batch."""
        from torch.nn.functional import cross_entropy

        scaled = logits / self.temperature
        return cross_entropy(scaled, batch.labels, label_smoothing=self.smoothing)


PLAIN = SmoothedCrossEntropy(smoothing=0.0, temperature=1.0)
"""Ordinary cross-entropy."""

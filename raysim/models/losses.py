"""A loss that several methods take instead of cross-entropy; torch is loaded when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from raysim.settings import In, settings

if TYPE_CHECKING:
    import torch

    from raysim.models.training import Batch


@settings
class SmoothedCrossEntropy:
    """Cross-entropy of softmax(z / T) with (1 - eps) one-hot + eps / C (ClipFL, section 5.1)."""

    smoothing: Annotated[float, In("[0, 1)", do="try 0.1")] = 0.1
    """eps."""
    temperature: Annotated[float, In("(0, inf)", do="1 is the usual CE")] = 10.0
    """T; the gradient shrinks by it and is not scaled back."""

    def __call__(self, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the mean over the batch."""
        from torch.nn.functional import cross_entropy

        scaled = logits / self.temperature
        return cross_entropy(scaled, batch.labels, label_smoothing=self.smoothing)


PLAIN = SmoothedCrossEntropy(smoothing=0.0, temperature=1.0)
"""Ordinary cross-entropy."""

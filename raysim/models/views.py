"""Two views of an image: the second one, losses on both, and training by them (FedLSR).

noisy_label_losses.md section 7, models.md section 12. Images are (N, channels, height, width).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysim.models.augmentation import flipped
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import prediction_entropy, sharpened
from raysim.models.training import local_optimizer

if TYPE_CHECKING:
    import torch

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)[:, None, None]
JITTER, HUE = 0.8, 0.2
"""Largest change of brightness, contrast and saturation; of hue, in turns."""
JITTERED, GREYED = 0.8, 0.2
"""Probabilities."""
DEGREES = 30.0
DISTILLED = 3.0
"""Logits times this are compared between the views (temperature 1/3)."""
SMALLEST = 1e-6
"""Probability that a logarithm is taken of."""


# ---- the second view -------------------------------------------------------------------------


def second_view(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the images changed at random: in colour and mirrored, or turned if not coloured."""
    if images.shape[1] == 3:
        return recoloured(flipped(images, rng), rng)
    return turned(images, rng.uniform(-DEGREES, DEGREES, len(images)))


def turned(images: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Return each image turned by its angle (N,); nearest pixels, its own darkest moves in."""
    height, width = images.shape[2:]
    y, x = np.indices((height, width)) - np.array([height - 1, width - 1])[:, None, None] / 2
    angles = np.deg2rad(degrees)[:, None, None]
    rows = np.rint(np.cos(angles) * y - np.sin(angles) * x + (height - 1) / 2).astype(np.int64)
    columns = np.rint(np.sin(angles) * y + np.cos(angles) * x + (width - 1) / 2).astype(np.int64)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    which = np.arange(len(images))[:, None, None]
    found = images[which, :, rows.clip(0, height - 1), columns.clip(0, width - 1)]
    dark = images.min(axis=(1, 2, 3), keepdims=True, initial=np.inf)
    return np.where(inside[:, None], found.transpose(0, 3, 1, 2), dark).astype(images.dtype)


def recoloured(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return most images with another brightness, contrast, saturation and hue; some grey.

    Colours are scaled to [0, 1] by an image's own extremes, since a client does not know how its
    images were normalised. The four changes come in one random order per call.
    """
    if not len(images):
        return images
    low = images.min(axis=(1, 2, 3), keepdims=True)
    span = np.maximum(images.max(axis=(1, 2, 3), keepdims=True) - low, SMALLEST)
    scaled = (images - low) / span
    count = len(images)
    factors = rng.uniform(1 - JITTER, 1 + JITTER, (3, count, 1, 1, 1)).astype(images.dtype)
    turns = rng.uniform(-HUE, HUE, (count, 1, 1)).astype(images.dtype)
    changed = scaled
    for change in rng.permutation(4):
        changed = _shifted(changed, turns) if change == 3 else _blended(changed, factors, change)
    changed = np.where(rng.random((count, 1, 1, 1)) < JITTERED, changed, scaled)
    grey = np.broadcast_to(_grey(changed), changed.shape)
    changed = np.where(rng.random((count, 1, 1, 1)) < GREYED, grey, changed)
    back: np.ndarray = (changed * span + low).astype(images.dtype)
    return back


def _blended(images: np.ndarray, factors: np.ndarray, change: int) -> np.ndarray:
    """Return the images moved away from black (0), from their mean grey (1), from grey (2)."""
    ends = (
        np.zeros_like(images[:, :1]),
        _grey(images).mean(axis=(2, 3), keepdims=True),
        _grey(images),
    )
    share = factors[change]
    found: np.ndarray = (share * images + (1 - share) * ends[change]).clip(0.0, 1.0)
    return found


def _shifted(images: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Return the images with their hue moved by ``turns``."""
    from skimage.color import hsv2rgb, rgb2hsv

    hsv = rgb2hsv(images, channel_axis=1)
    hsv[:, 0] = (hsv[:, 0] + turns) % 1.0
    found: np.ndarray = hsv2rgb(hsv, channel_axis=1)
    return found


def _grey(images: np.ndarray) -> np.ndarray:
    grey: np.ndarray = (images * GREY).sum(axis=1, keepdims=True)
    return grey


# ---- losses on both views --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TwoViewLoss:
    """-log of the sharpened mixed prediction, plus gamma JS, plus lambda_e entropy."""

    consistency: float
    """gamma(t)."""
    entropy: float
    """lambda_e."""
    literal: bool = False
    """As the released code: the prediction enters cross-entropy as if it were logits, JS is
    divided by C, the entropy is that of softmax(q) of view 1."""

    def __call__(
        self, first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor, share: float
    ) -> torch.Tensor:
        """Return the mean over a batch of the logits of both views; ``share`` is view 1's."""
        import torch
        from torch.nn.functional import cross_entropy

        gap = jensen_shannon(first, second)
        if self.literal:
            own, other = torch.softmax(first, dim=1), torch.softmax(second, dim=1)
            mixed = sharpened(share * own + (1.0 - share) * other, 0.5)
            sure = prediction_entropy(_distilled(first))
            fit = cross_entropy(mixed, labels)
            return fit + self.consistency * gap / first.shape[1] + self.entropy * sure
        sure = (prediction_entropy(first) + prediction_entropy(second)) / 2
        # p_s = p^2 / sum p^2 is softmax(2 log p): so no probability is rounded to zero, and a
        # label that seems impossible still has a gradient
        fit = cross_entropy(2.0 * mixed_log(first, second, share), labels)
        return fit + self.consistency * gap + self.entropy * sure


def mixed_log(first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    """Return log(l softmax(z1) + (1 - l) softmax(z2)), in logarithms throughout."""
    import torch

    log_share, log_rest = torch.tensor([share, 1.0 - share]).log().tolist()
    own, other = first.log_softmax(dim=1) + log_share, second.log_softmax(dim=1) + log_rest
    return torch.logaddexp(own, other)


def jensen_shannon(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the mean over samples of JS(q1, q2), q = softmax(3 z)."""
    q1, q2 = _distilled(first), _distilled(second)
    log_mean = ((q1 + q2) / 2).log()
    each = q1 * (q1.log() - log_mean) + q2 * (q2.log() - log_mean)
    return each.sum(dim=1).mean() / 2


def _distilled(logits: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.softmax(DISTILLED * logits, dim=1).clamp(SMALLEST, 1.0)


def train_two_views(own: Session, loss: TwoViewLoss) -> None:
    """Train network 0 on every batch and its second view."""
    import torch

    network, weights = own.networks[0], own.weights()
    update = local_optimizer(weights, own.train)
    for epoch, batch in own.batches():
        other = second_view(batch.images.cpu().numpy(), own.rng)
        first = network(batch.images)
        second = network(torch.tensor(other, dtype=torch.float32, device=own.device))
        share = float(own.rng.beta(1.0, 1.0))
        value = loss(first, second, batch.labels, share)
        update(gradients(value, weights))
        own.note(epoch, len(batch.index), value)

"""FedLSR: predictions of two views are mixed, sharpened and held together; no label is judged.

Jiang, Sun, Wang and Liu, CIKM 2022. We have not read it: the loss is the paper's as our notes have
it (raysim/docs/sheets/fedlsr.md); ``parity: code`` is the released one, which feeds the mixed
probabilities into a softmax once more and takes the entropy of a softmax of a softmax.

Deviations from the released code:
- the loss's logarithm has no floor, under which a sure network would not learn from a label that it
  holds for wrong;
- colours are changed relative to an image's own range, since clients do not know how images were
  normalised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from raysim.methods.method import METHODS, Method, other_training, share_of_rounds
from raysim.models.augmentation import flipped
from raysim.models.sessions import Session, gradients
from raysim.models.soft_targets import prediction_entropy, sharpened
from raysim.models.training import local_optimizer
from raysim.protocols import Contribution, Tree, Where
from raysim.settings import In, settings
from raysim.steps.sessions import sent_model

if TYPE_CHECKING:
    import torch

DISTILLED = 3.0
"""Logits are multiplied by this before the views are compared (temperature 1/3)."""
SMALLEST = 1e-6
"""Smaller probabilities are raised to this before the logarithm."""


@METHODS.register("fedlsr")
@settings
class FedLsr(Method):
    """FedLSR (Jiang et al. 2022): sharpened predictions of two views, no label is judged."""

    consistency: Annotated[float, In("[0, inf)", do="try 0.4")] = 0.4  # the authors' notebook
    """gamma, of the divergence between the views; ClipFL's study: 0.25."""
    warmup_rounds: Annotated[int | None, In("[0, inf)", do="try null")] = None
    """T_w, rounds over which gamma grows from 0; null: a fifth of train.rounds. ClipFL's study: 40
    of 120."""
    entropy: Annotated[float, In("[0, inf)", do="try 0.6")] = 0.6  # the authors' notebook
    """lambda_e, of the predictions' entropy."""
    parity: Literal["paper", "code"] = "paper"
    title: ClassVar[str] = "FedLSR"
    refuses: ClassVar = (other_training,)
    counted_by: ClassVar = "samples"

    def train(self, session: Session, memory: Tree, where: Where) -> tuple[Tree, Contribution]:
        """Train on every batch and its second view."""
        import torch

        gamma = self.gamma(where.round, session.train.rounds)
        network, weights = session.networks[0], session.weights()
        update = local_optimizer(weights, session.train)
        for epoch, batch in session.batches():
            other = second_view(batch.images.cpu().numpy(), session.rng)
            first = network(batch.images)
            second = network(torch.tensor(other, dtype=torch.float32, device=session.device))
            share = float(session.rng.beta(1.0, 1.0))
            loss = self.loss(first, second, batch.labels, share=share, gamma=gamma)
            update(gradients(loss, weights))
            session.note(epoch, len(batch.index), loss)
        return memory, sent_model(session)

    def gamma(self, round_id: int, rounds: int) -> float:
        """Return gamma(t) = gamma min(t / T_w, 1), rounds counted from 0."""
        ramp = share_of_rounds(rounds, self.warmup_rounds, 5)
        return self.consistency * (min(round_id / ramp, 1.0) if ramp else 1.0)

    def loss(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        labels: torch.Tensor,
        *,
        share: float,
        gamma: float,
    ) -> torch.Tensor:
        """Return -log p_s,y + gamma JS + lambda_e H, the mean over a batch of both views' logits.

        ``share`` is view 1's part of the mixture. In the released code the prediction enters
        cross-entropy as if it were logits, JS is divided by C, and the entropy is that of
        softmax(q) of view 1.
        """
        import torch
        from torch.nn.functional import cross_entropy

        divergence = jensen_shannon(first, second)
        if self.parity == "code":
            p1, p2 = torch.softmax(first, dim=1), torch.softmax(second, dim=1)
            mixed = sharpened(share * p1 + (1.0 - share) * p2, 0.5)
            entropy = prediction_entropy(_distilled(first))
            fit = cross_entropy(mixed, labels)
            return fit + gamma * divergence / first.shape[1] + self.entropy * entropy
        entropy = (prediction_entropy(first) + prediction_entropy(second)) / 2
        # p_s = p^2 / sum p^2 is softmax(2 log p): so no probability is rounded to zero, and a
        # label that seems impossible still has a gradient
        fit = cross_entropy(2.0 * mixed_log(first, second, share), labels)
        return fit + gamma * divergence + self.entropy * entropy


def mixed_log(first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    """Return log(l softmax(z1) + (1 - l) softmax(z2)), in logarithms throughout."""
    import torch

    log_share, log_rest = torch.tensor([share, 1.0 - share]).log().tolist()
    return torch.logaddexp(
        first.log_softmax(dim=1) + log_share, second.log_softmax(dim=1) + log_rest
    )


def jensen_shannon(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the mean over samples of JS(q1, q2), q = softmax(3 z)."""
    q1, q2 = _distilled(first), _distilled(second)
    log_mean = ((q1 + q2) / 2).log()
    each = q1 * (q1.log() - log_mean) + q2 * (q2.log() - log_mean)
    return each.sum(dim=1).mean() / 2


def _distilled(logits: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.softmax(DISTILLED * logits, dim=1).clamp(SMALLEST, 1.0)


# ---- the second view. Images are (N, channels, height, width) ------------------------------------

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)[:, None, None]
JITTER, HUE = 0.8, 0.2
"""Largest change of brightness, contrast and saturation; of hue, in turns."""
JITTERED, GREYED = 0.8, 0.2
"""Probabilities."""
DEGREES = 30.0


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
    pixels = images[which, :, rows.clip(0, height - 1), columns.clip(0, width - 1)]
    dark = images.min(axis=(1, 2, 3), keepdims=True, initial=np.inf)
    return np.where(inside[:, None], pixels.transpose(0, 3, 1, 2), dark).astype(images.dtype)


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
    blended: np.ndarray = (share * images + (1 - share) * ends[change]).clip(0.0, 1.0)
    return blended


def _shifted(images: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Return the images with their hue moved by ``turns``."""
    from skimage.color import hsv2rgb, rgb2hsv

    hsv = rgb2hsv(images, channel_axis=1)
    hsv[:, 0] = (hsv[:, 0] + turns) % 1.0
    shifted: np.ndarray = hsv2rgb(hsv, channel_axis=1)
    return shifted


def _grey(images: np.ndarray) -> np.ndarray:
    grey: np.ndarray = (images * GREY).sum(axis=1, keepdims=True)
    return grey

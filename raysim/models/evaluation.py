"""What a model says about images: logits, predicted labels, accuracy and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysim.models.params import image_shape_of, load_tree, module_for, seeded
from raysim.models.zoo import Model
from raysim.protocols import Tree

if TYPE_CHECKING:
    import torch

ROWS = 512
"""Images that run through a network together."""
NORMED_ROWS = 128  # FedRN's server: raysim/docs/sheets/models.md, "Networks of FedRN"
"""The same where batch norm keeps no running statistics: then they are normalised together, and
their number changes what is predicted."""


@dataclass(frozen=True)
class Evaluation:
    """Counts and mean cross-entropy of one model on one labelled set."""

    correct: int
    total: int
    loss: float
    """Mean over the samples; nan if there are none."""

    @property
    def accuracy(self) -> float:
        """Share of samples whose largest logit is at the label; nan if there are none."""
        return self.correct / self.total if self.total else float("nan")


def logits(
    model: Model,
    tree: Tree,
    images: np.ndarray,
    *,
    classes: int,
    batch_size: int = ROWS,
    normed_rows: int = NORMED_ROWS,
    device: str = "cpu",
    batch_statistics: bool = False,
) -> np.ndarray:
    """Return the logits of normalised images (N, channels, height, width), float32 (N, classes).

    ``normed_rows`` takes the place of ``batch_size`` where batch norm keeps no statistics.
    With ``batch_statistics`` batch norm uses each batch's own mean and variance, since the running
    ones of fresh weights say nothing.
    """
    module = module_for(model, image_shape_of(images), classes, device=device)
    load_tree(module, tree)
    module.train(batch_statistics)
    with seeded(0, device):
        return in_parts(
            module, images, classes, rows=batch_size, normed_rows=normed_rows, device=device
        )


def in_parts(
    network: torch.nn.Module,
    images: np.ndarray,
    width: int,
    *,
    rows: int = ROWS,
    normed_rows: int,
    device: str,
    run: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> np.ndarray:
    """Return what ``run`` (default: the network) makes of the images, float32 (N, width).

    ``rows`` of them at a time, ``normed_rows`` if the network's batch norm keeps no statistics.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    norms = (part for part in network.modules() if isinstance(part, _BatchNorm))
    step = normed_rows if any(not norm.track_running_stats for norm in norms) else rows
    out = np.empty((len(images), width), dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            # A copy in torch's own memory: BLAS may give other bits for another alignment.
            batch = torch.tensor(images[part], dtype=torch.float32, device=device)
            out[part] = (run or network)(batch).cpu().numpy()
    return out


def score(found: np.ndarray, labels: np.ndarray) -> Evaluation:
    """Return the loss of logits (N, C), and accuracy over ALL classes, not only a task's.

    raysim/docs/sheets/metrics.md, "Accuracy of a client". The lowest class wins a tie.
    """
    correct = int((found.argmax(axis=1) == labels).sum())
    losses = sample_losses(found, labels)
    loss = float(losses.mean()) if len(losses) else float("nan")
    return Evaluation(correct=correct, total=len(labels), loss=loss)


def top_accuracy(found: np.ndarray, labels: np.ndarray, top: int = 5) -> float:
    """Return the share of rows of logits (N, C) whose label is among the ``top`` largest.

    Of equal logits the lower class comes first; nan if there are no rows.
    """
    own = found[np.arange(len(labels)), labels][:, None]
    before = (found == own) & (np.arange(found.shape[1]) < labels[:, None])
    rank = ((found > own) | before).sum(axis=1)
    return float((rank < top).mean()) if len(labels) else float("nan")


def sample_losses(found: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the cross-entropy of each row of logits with its label, float64 (N,)."""
    shifted = found.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    chosen = shifted[np.arange(len(labels)), labels]
    losses: np.ndarray = np.log(np.exp(shifted).sum(axis=1)) - chosen
    return losses

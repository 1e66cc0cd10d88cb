"""One step towards given class probabilities, and the probabilities a model gives (RHFL)."""

from __future__ import annotations

import numpy as np

from raysim.models.params import image_shape_of, load_tree, module_for, seeded, to_tree
from raysim.models.zoo import Model
from raysim.protocols import Tree


def published(
    model: Model, tree: Tree, images: np.ndarray, *, classes: int, train_mode: bool, device: str
) -> tuple[Tree, np.ndarray]:
    """Return softmax outputs (N, C) on one batch, and the model with its statistics moved by it."""
    import torch

    module = module_for(model, image_shape_of(images), classes, device=device)
    load_tree(module, tree)
    module.train(train_mode)
    with seeded(0, device), torch.no_grad():
        batch = torch.tensor(images, dtype=torch.float32, device=device)
        found = torch.softmax(module(batch), dim=1).cpu().numpy()
    return to_tree(module), found


def aligned(
    model: Model,
    tree: Tree,
    images: np.ndarray,
    targets: np.ndarray,
    *,
    classes: int,
    lr: float,
    train_mode: bool,
    device: str,
) -> tuple[Tree, float]:
    """Return the model after one Adam step on -mean sum_c t_c log p_c, and that loss.

    The optimiser is new for every batch, as in the released code: a step has the size of lr. The
    statistics of batch norm stay: they were moved when the outputs on this batch were published.
    """
    import torch

    from raysim.models.optimizers import adam

    module = module_for(model, image_shape_of(images), classes, device=device)
    load_tree(module, tree)
    module.train(train_mode)
    parameters: list[torch.Tensor] = list(module.parameters())
    with seeded(0, device):
        batch = torch.tensor(images, dtype=torch.float32, device=device)
        target = torch.tensor(targets, dtype=torch.float32, device=device)
        loss = -(target * torch.log_softmax(module(batch), dim=1)).sum(dim=1).mean()
        adam(parameters, lr=lr, decay=0.0)(list(torch.autograd.grad(loss, parameters)))
    return {**to_tree(module), "buffers": tree["buffers"]}, float(loss.item())

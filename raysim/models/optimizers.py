"""The two local optimisers, as update functions over lists of tensors. This module imports torch.

Same updates as ``torch.optim.SGD`` and ``torch.optim.Adam`` (a test compares them). Ours because
making a torch optimiser loads the compiler (1.2 s and 150 MB with torch 2.15), in every actor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensors = list[torch.Tensor]
Update = Callable[[Tensors], None]
"""Takes the gradients of one step and moves the parameters in place."""


def sgd(parameters: Tensors, *, lr: float, momentum: float, decay: float) -> Update:
    """Return v <- momentum v + (g + decay w), w <- w - lr v, with v = 0 at first."""
    velocity = [torch.zeros_like(w) for w in parameters] if momentum else []

    def update(gradients: Tensors) -> None:
        with torch.no_grad():
            moves = _with_decay(gradients, parameters, decay)
            if velocity:
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, moves)
                moves = velocity
            torch._foreach_add_(parameters, moves, alpha=-lr)

    return update


def adam(parameters: Tensors, *, lr: float, decay: float) -> Update:
    """Return Adam's update with decay in the gradient, betas 0.9 and 0.999, epsilon 1e-8."""
    first = [torch.zeros_like(w) for w in parameters]
    second = [torch.zeros_like(w) for w in parameters]
    steps = [torch.zeros((), device=w.device) for w in parameters]

    def update(gradients: Tensors) -> None:
        # Of a stack of clients, only the first ones still have batches.
        moved, mean, square, count = (
            part[: len(gradients)] for part in (parameters, first, second, steps)
        )
        moves = [_laid_out_as(w, g) for w, g in zip(moved, gradients, strict=True)]
        with torch.no_grad():
            torch._foreach_add_(count, 1.0)
            torch._fused_adam_(
                moved,
                moves,
                mean,
                square,
                [],
                count,
                lr=lr,
                beta1=0.9,
                beta2=0.999,
                weight_decay=decay,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )

    return update


def _laid_out_as(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient with the strides of the weight: the kernel reads both as flat memory."""
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)


def _with_decay(gradients: Tensors, parameters: Tensors, decay: float) -> Tensors:
    # Out of place: autograd may hand out tensors that share memory.
    return list(torch._foreach_add(gradients, parameters, alpha=decay) if decay else gradients)

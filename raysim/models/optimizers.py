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
    steps = 0

    def update(gradients: Tensors) -> None:
        nonlocal steps
        steps += 1
        with torch.no_grad():
            moves = _with_decay(gradients, parameters, decay)
            torch._foreach_lerp_(first, moves, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, moves, moves, value=0.001)
            scales = torch._foreach_sqrt(second)
            torch._foreach_div_(scales, (1.0 - 0.999**steps) ** 0.5)
            torch._foreach_add_(scales, 1e-8)
            torch._foreach_addcdiv_(parameters, first, scales, value=-lr / (1.0 - 0.9**steps))

    return update


def _with_decay(gradients: Tensors, parameters: Tensors, decay: float) -> Tensors:
    # Out of place: autograd may hand out tensors that share memory.
    return list(torch._foreach_add(gradients, parameters, alpha=decay) if decay else gradients)

"""Server optimisers: how a round's mean becomes the new model under FedNova and FedAdam.

Formulas: raysim/docs/sheets/optimizers.md. Arrays are flat float32 parameters (P,); the sums run in
float64 and are stored as float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def effective_steps(steps: int, momentum: float) -> float:
    """Return a_k, how many plain SGD steps ``steps`` with ``momentum`` amount to (FedNova).

    a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), which is tau without momentum.
    """
    if momentum == 0.0:
        return float(steps)
    rest = momentum * (1.0 - momentum**steps) / (1.0 - momentum)
    return (steps - rest) / (1.0 - momentum)


def fednova(received: Array, direction: Array, steps: float) -> Array:
    """Return w - tau_eff d, from the mean direction d and the mean of effective steps (FedNova)."""
    new = received.astype(np.float64) - steps * direction.astype(np.float64)
    return new.astype(np.float32)


def fedadam(
    received: Array,
    mean: Array,
    first: Array,
    second: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    tau: float,
) -> tuple[Array, Array, Array]:
    """Return the new weights and both moments (FedAdam, Reddi et al. 2021; no bias correction)."""
    delta = mean.astype(np.float64) - received
    first = beta1 * first + (1.0 - beta1) * delta
    second = beta2 * second + (1.0 - beta2) * delta**2
    new = received + lr * first / (np.sqrt(second) + tau)
    return new.astype(np.float32), first.astype(np.float32), second.astype(np.float32)

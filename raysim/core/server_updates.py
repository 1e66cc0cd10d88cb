"""What a server makes of a round's mean besides taking it: FedNova and FedAdam.

Arrays are flat float32 parameters (P,); the sums run in float64 and are stored as float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def effective_steps(steps: int, momentum: float) -> float:
    """Return a_k, what ``steps`` SGD steps with ``momentum`` amount to (FedNova; sheet, FedNova).

    a = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), which is tau without momentum.
    """
    if momentum == 0.0:
        return float(steps)
    rest = momentum * (1.0 - momentum**steps) / (1.0 - momentum)
    return (steps - rest) / (1.0 - momentum)


def fednova(received: Array, direction: Array, steps: float) -> Array:
    """Return w - tau_eff d, with the mean direction d and mean effective steps tau_eff."""
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
    """Return the new weights and both moments (Reddi et al. 2021, Algorithm 2; no bias terms)."""
    delta = mean.astype(np.float64) - received
    first = beta1 * first + (1.0 - beta1) * delta
    second = beta2 * second + (1.0 - beta2) * delta**2
    new = received + lr * first / (np.sqrt(second) + tau)
    return new.astype(np.float32), first.astype(np.float32), second.astype(np.float32)

"""Reference: federated averaging as one writes it in plain PyTorch. Fixed, do not tune for raysim.

One process, one model, one client after another, batches in stored order, plain mean of weights.
The number of torch threads is the caller's; the benchmark takes the faster of one and two.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ClientData = tuple[torch.Tensor, torch.Tensor]
"""Images (N, channels, height, width) float32 and labels (N,) int64, in memory."""


def train_client(
    module: torch.nn.Module, data: ClientData, *, lr: float, batch_size: int, epochs: int
) -> None:
    """Train ``module`` in place on one client's samples."""
    images, labels = data
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    module.train()
    for _ in range(epochs):
        for start in range(0, len(labels), batch_size):
            optimizer.zero_grad()
            logits = module(images[start : start + batch_size])
            loss = cross_entropy(logits, labels[start : start + batch_size])
            loss.backward()
            optimizer.step()


def train_round(
    module: torch.nn.Module,
    weights: torch.Tensor,
    clients: Sequence[ClientData],
    *,
    lr: float,
    batch_size: int,
    epochs: int,
) -> torch.Tensor:
    """Return the mean of the weights after each of ``clients`` trained from ``weights``."""
    total = torch.zeros_like(weights)
    for data in clients:
        vector_to_parameters(weights.clone(), module.parameters())
        train_client(module, data, lr=lr, batch_size=batch_size, epochs=epochs)
        total += parameters_to_vector(module.parameters()).detach()
    return total / len(clients)

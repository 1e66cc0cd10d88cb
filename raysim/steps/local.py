"""What a client does in a round.

Train the received model on its own images and its current labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raysim.models.threads import one_thread, torch_device
from raysim.models.training import TrainSettings, train_client
from raysim.protocols import Client, ClientId, Contribution, Tree
from raysim.seeding import stream


def current_labels(client: Client, memory: Tree) -> np.ndarray:
    """Return the corrected labels where a correction wrote them, else the given ones."""
    return np.asarray(memory.get("labels", client.record.labels))


def train_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after E local epochs (Algorithm 1, line 26)."""
    labels = current_labels(client, memory)
    with one_thread():
        tree, report = train_client(
            arguments["model"],
            arguments["models"][arguments["group"]],
            client.world.images(client.sample_ids),
            labels,
            arguments["train"],
            rng=stream(arguments["seed"], "train", arguments["round"], client.id),
            classes=arguments["classes"],
            device=torch_device(),
        )
    weight = 1.0 if arguments["weights"] == "uniform" else float(max(len(labels), 1))
    return memory, Contribution(tree, weight, {"loss": report.loss, "samples": report.samples})


def participants(
    clients: list[ClientId], train: TrainSettings, *, seed: int, round_id: int
) -> list[ClientId]:
    """Return the clients of this round: max(int(C N), 1), uniform without replacement."""
    count = max(int(train.participation * len(clients)), 1)
    if count >= len(clients):
        return list(clients)
    rng = stream(seed, "participation", round_id)
    return sorted(int(k) for k in rng.choice(np.asarray(clients), size=count, replace=False))

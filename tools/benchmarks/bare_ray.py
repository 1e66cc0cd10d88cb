"""Reference: two torch actors on Ray and nothing else. Fixed, do not tune for raysim.

``python bare_ray.py DATA.npz`` deals the clients of DATA.npz (images_0, labels_0, images_1, ...)
to two actors, trains one round of logistic regression on them with one call per actor, and prints
{"first_round": accuracy}. Every line {"round_trips": N} on standard input is then answered with
the seconds of N rounds of empty calls; the end of the input ends it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import ray  # noqa: TID251 - this is what raysim is compared with
import torch
from torch.nn.functional import cross_entropy

ACTORS, LR, BATCH, EPOCHS = 2, 0.05, 32, 2


@ray.remote(num_cpus=1)
class Trainer:
    """Half of the clients."""

    def __init__(self, clients: list[tuple[np.ndarray, np.ndarray]]) -> None:
        torch.set_num_threads(1)
        self.clients = [
            (torch.tensor(images, dtype=torch.float32).flatten(1), torch.tensor(labels))
            for images, labels in clients
        ]

    def train(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the sum of the weights after each client trained from ``state``."""
        classes, width = state["weight"].shape
        total = {name: np.zeros_like(array) for name, array in state.items()}
        for images, labels in self.clients:
            module = torch.nn.Linear(width, classes)
            module.load_state_dict({name: torch.tensor(a) for name, a in state.items()})
            optimizer = torch.optim.SGD(module.parameters(), lr=LR)
            for _ in range(EPOCHS):
                for start in range(0, len(labels), BATCH):
                    optimizer.zero_grad()
                    logits = module(images[start : start + BATCH])
                    cross_entropy(logits, labels[start : start + BATCH]).backward()
                    optimizer.step()
            for name, tensor in module.state_dict().items():
                total[name] += tensor.numpy()
        return total

    def nothing(self) -> None:
        """Return at once: what a call costs by itself."""


def main(path: str) -> None:
    """Run one round, then answer questions."""
    with np.load(path) as file:
        count = len(file.files) // 2
        clients = [(file[f"images_{k}"], file[f"labels_{k}"]) for k in range(count)]
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")
    actors = [Trainer.remote(clients[a::ACTORS]) for a in range(ACTORS)]
    module = torch.nn.Linear(clients[0][0][0].size, 10)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    sums = ray.get([actor.train.remote(state) for actor in actors])
    mean = {name: torch.tensor(sum(s[name] for s in sums) / count) for name in state}
    module.load_state_dict(mean)
    answer({"first_round": accuracy(module, clients)})
    for line in sys.stdin:
        answer({"seconds": round_trips(actors, json.loads(line)["round_trips"])})


def accuracy(module: torch.nn.Module, clients: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return the share of right answers over all clients' samples."""
    images = torch.tensor(np.concatenate([i for i, _ in clients]), dtype=torch.float32).flatten(1)
    labels = torch.tensor(np.concatenate([one for _, one in clients]))
    with torch.no_grad():
        return float((module(images).argmax(1) == labels).float().mean())


def round_trips(actors: list[Any], count: int) -> list[float]:
    """Return the seconds of ``count`` rounds of one empty call per actor."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        ray.get([actor.nothing.remote() for actor in actors])
        seconds.append(time.perf_counter() - started)
    return seconds


def answer(value: dict[str, Any]) -> None:
    """Write one line of JSON."""
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

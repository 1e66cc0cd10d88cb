"""The training workloads of issue 3, as raysim configs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

CLASSES = 10
NEVER = 10**9


@dataclass(frozen=True)
class Workload:
    """FedAvg with ``per_round`` of ``clients`` clients of ``samples`` samples, 28x28 grey."""

    name: str
    clients: int
    samples: int
    per_round: int
    model: Mapping[str, Any] = field(default_factory=lambda: {"name": "logistic"})
    rounds: int = 12
    block: int = 1
    """Rounds of one side before it is the other side's turn."""
    target: float = 1.0
    """Largest allowed ratio to the plain loop."""
    limit: float = 1.0
    """Smallest ratio anybody measured (the issue's last column)."""


CNN = {"name": "lenet5", "batch_norm": False}
# B: the issue gives no client size. Its plain loop takes 5.3 ms per client there, as in A (4.6 ms,
# 600 samples) and not as in C (0.9 ms, 60 samples), so clients of B hold 600 samples too.
WORKLOADS = (
    Workload("A logistic", 100, 600, 10, rounds=42, block=5, target=0.30, limit=0.14),
    Workload("A mlp", 100, 600, 10, {"name": "mlp"}, rounds=22, block=5, target=0.42, limit=0.34),
    Workload("A cnn", 100, 600, 10, CNN, rounds=4, target=0.44, limit=0.37),
    Workload("B logistic", 1000, 600, 100, rounds=10, target=0.22, limit=0.16),
    Workload("C logistic", 10_000, 60, 10_000, rounds=5, target=0.20, limit=0.10),
)
QUICK_CLIENTS = {100: 20, 1000: 30, 10_000: 40}
"""The numbers of clients, and what --quick makes of them."""


def quick(workload: Workload) -> Workload:
    """Return the workload shrunk to seconds."""
    clients = QUICK_CLIENTS[workload.clients]
    per_round = max(2, clients * workload.per_round // workload.clients)
    samples = 50 if workload.samples == 600 else 30
    small = {"clients": clients, "samples": samples, "per_round": per_round}
    return replace(workload, **small, rounds=5, block=min(workload.block, 2))


def has_order() -> bool:
    """Whether this raysim can train in stored order, as the plain loop does."""
    from raysim.models.training import TrainSettings

    return "order" in {f.name for f in dataclasses.fields(TrainSettings)}


def run_config(workload: Workload, *, rounds: int, runtime: str, output: str = "runs") -> Any:
    """Return the ``RunConfig`` of ``workload`` on "ray" (two actors) or "local"."""
    from raysim.config import load_config

    train = {
        "rounds": rounds,
        "epochs": 1,
        "batch_size": 32,
        "lr": 0.05,
        "participation": workload.per_round / workload.clients,
    }
    return load_config(
        {
            "name": "bench",
            "data": _data(workload),
            "model": dict(workload.model),
            "train": {**train, **({"order": "stored"} if has_order() else {})},
            "server": {"weights": "uniform"},
            "method": "single",
            "evaluate": {"every": NEVER},
            "checkpoint": {"every": NEVER},
            "runtime": {"kind": runtime, **({"actors": 2} if runtime == "ray" else {})},
            "output": output,
        }
    )


def data_bytes(workload: Workload) -> int:
    """Bytes of the clients' images."""
    return workload.clients * workload.samples * 784 * 4


def _data(workload: Workload) -> dict[str, Any]:
    total = workload.clients * workload.samples
    return {
        "dataset": {
            "name": "synthetic",
            "classes": CLASSES,
            "dim": 784,
            "per_class": total // CLASSES,
            "test_per_class": 20,
            # Faint images: where rounding decides a tie in max pooling the weights jump, in
            # proportion to the images, and the jumps grow from round to round: two correct float32
            # loops are 1e-4 apart after five rounds of the CNN, so that it runs fewer.
            "noise_std": 0.03,
            "separation": 1.0,
        },
        "features": "pixels",
        "partition": {
            "kind": "tasks",
            "clients": workload.clients,
            "groups": 1,
            "split": "iid",
            "impurity_rate": 0.0,
        },
        "noise": "none",
        "server": {"per_class": 0},
    }

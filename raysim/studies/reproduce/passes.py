"""FedRN's Table 8: what a round costs, counted in runs on the digits.

Messages in models per client (M), work in passes over a client's samples (F forward, B backward).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from raysim.data.datasets import Dataset

EPOCHS, NEIGHBOURS = 5, 2
SETTING: dict[str, Any] = {
    "seed": 0,
    "data": {
        "dataset": "digits",
        "fraction": 0.25,
        "partition": {"kind": "iid", "clients": 4},
        "noise": {"kind": "symmetric", "rate": 0.4},
        "server": {"per_class": 0},
    },
    "model": {"name": "small_cnn", "widths": [4, 8]},
    "train": {"rounds": 3, "epochs": EPOCHS, "batch_size": 32, "lr": 0.05, "momentum": 0.5},
    "server": {"weights": "samples"},
    "evaluate": {"every": 100},
}
"""A run of three rounds; the second one is counted: nothing is evaluated in it."""
SETTINGS = {"fedrn/table8": SETTING}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "single"},
    "co_teaching": {"name": "co_teaching", "ramp_rounds": 0},
    "joint_optimization": {"name": "joint_optimization", "warmup_rounds": 1},
    "selfie": {"name": "selfie", "warmup_rounds": 1},
    "dividemix": {"name": "dividemix", "warmup_rounds": 1},
    "rfl": {"name": "rfl", "ramp_rounds": 0, "pseudo_rounds": 0},
    "fedrn": {"name": "fedrn", "warmup_rounds": 1, "neighbours": NEIGHBOURS},
}


def measure(name: str, seed: int) -> dict[str, Any]:
    """Return as ``values`` what a round of every method cost."""
    costs = {
        f"{row} {what}": round(cost, 4)
        for row, method in METHODS.items()
        for what, cost in measured_costs(method, seed).items()
    }
    return {"values": costs}


def datasets_of(name: str) -> list[Dataset]:
    return []  # digits need no file


def measured_costs(method: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Return messages and passes of one method's second round."""
    from raysim.config import load_config
    from raysim.experiment import Experiment
    from raysim.models.params import initial_tree

    with TemporaryDirectory() as folder:
        output = str(Path(folder) / "run")
        plain = {**SETTING, "seed": seed, "method": dict(method), "output": output}
        experiment = Experiment(load_config({**plain, "runtime": {"kind": "local"}}))
        marks: list[tuple[int, int]] = []
        with counted_passes() as passes:

            def mark(event: Any) -> None:
                if event.kind == "round":
                    marks.append((passes.forward, passes.backward))

            experiment.run(listeners=[mark])
        record = experiment.folder.records()[-2]
        data = experiment.prepare()
    tree = initial_tree(experiment.config.model, data.image_shape, data.classes, seed)
    one = sum(array.nbytes for array in tree.values()) * len(data.split.clients)
    samples = sum(len(ids) for ids in data.split.clients)
    (f0, b0), (f1, b1) = marks[-3:-1]
    return {
        "down M": record.bytes("down") / one,
        "up M": record.bytes("up") / one,
        "F": (f1 - f0) / samples,
        "B": (b1 - b0) / samples,
    }


@dataclass
class Passes:
    """Images that went through networks, and gradients that came back."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """Count what networks do inside the block, at their heads.

    Bodies have no other linear layer here, and some methods call body and head one by one.
    """
    from torch.nn import Linear
    from torch.nn.modules.module import register_module_forward_hook

    passes = Passes()

    def came_back(gradient: Any) -> None:
        passes.backward += len(gradient)

    def went_through(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, Linear):
            passes.forward += len(output)
            if output.requires_grad:
                output.register_hook(came_back)

    hook = register_module_forward_hook(went_through)
    try:
        yield passes
    finally:
        hook.remove()

"""The server's half of a round: from the mean of the contributions to the next model.

FedAvg, FedNova, FedAdam: raysim/docs/sheets/optimizers.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raysim.core.server_updates import effective_steps, fedadam, fednova
from raysim.errors import ConfigError
from raysim.protocols import ClientId, Federation, GroupId, Handle, Tree
from raysim.settings import check, settings

if TYPE_CHECKING:
    from raysim.models.training import TrainSettings


SCALAR_BYTES = 4
"""What one number costs on the wire."""


@settings
class ServerSettings:
    """How the server turns a round's contributions into the next model."""

    optimizer: Literal["mean", "fednova", "fedadam"] = "mean"
    """mean: FedAvg, and FedProx with train.proximal."""
    weights: Literal["uniform", "samples"] = "uniform"  # FB-NLL Alg. 1, line 30
    """uniform: every client counts the same; samples: by its number of samples."""
    lr: float = 0.01  # ClipFL
    """FedAdam's step."""
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 0.001  # ClipFL
    """FedAdam's floor below the root of the second moment."""

    def __post_init__(self) -> None:
        check(self.lr > 0, "lr", "must be above 0", got=self.lr, do="try 0.01")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            check(0 <= value < 1, name, "must be in [0, 1)", got=value, do="try 0.9")
        check(self.tau > 0, "tau", "must be above 0", got=self.tau, do="try 0.001")

    def check(self, train: TrainSettings) -> None:
        """Refuse local training whose steps FedNova cannot count."""
        if self.optimizer == "fednova" and train.optimizer != "sgd":
            raise ConfigError(
                f"server.optimizer is fednova, but train.optimizer is {train.optimizer}; its "
                "normalisation is defined for sgd: set train.optimizer to sgd, or server.optimizer "
                "to mean"
            )
        if self.optimizer == "fednova" and train.proximal:
            raise ConfigError(
                f"server.optimizer is fednova and train.proximal is {train.proximal:g}; its count "
                "of local steps holds without a proximal term: set train.proximal to 0"
            )


def tree_to_send(
    server: ServerSettings, train: TrainSettings, *, received: Tree, trained: Tree, steps: int
) -> Tree:
    """Return what a client sends after ``steps`` local steps: its model, or FedNova's direction."""
    if server.optimizer != "fednova":
        return trained
    count = effective_steps(max(steps, 1), train.momentum)
    moved = np.asarray(received["trainable"], dtype=np.float64) - trained["trainable"]
    return {
        "trainable": (moved / count).astype(np.float32),  # d_k = (w_g - w_k) / a_k
        "buffers": trained["buffers"],
        "effective_steps": np.array([count], dtype=np.float32),
    }


def next_models(
    federation: Federation,
    server: ServerSettings,
    *,
    models: Mapping[str, Handle],
    means: Mapping[GroupId, Handle],
) -> dict[str, Handle]:
    """Return the models of the groups that trained, and FedAdam's moments where it is used."""
    new: dict[str, Handle] = {}
    for group, mean in means.items():
        name = group_model(group)
        if server.optimizer == "mean":
            new[name] = mean
        elif server.optimizer == "fednova":
            new[name] = federation.derive(
                nova_model, server=group, received=models[name], mean=mean
            )
        else:
            moments = models.get(f"moments/{group}")
            shared = {"received": models[name], "mean": mean, "moments": moments, "how": server}
            both = federation.derive(adam_model, server=group, **shared)
            new[name] = federation.derive(part_of, server=group, tree=both, part="model")
            new[f"moments/{group}"] = federation.derive(
                part_of, server=group, tree=both, part="moments"
            )
    return new


def members_by_group(groups: Mapping[ClientId, GroupId]) -> list[list[ClientId]]:
    """Return the clients of each group, groups and clients in order."""
    found: dict[GroupId, list[ClientId]] = {}
    for k, group in sorted(groups.items()):
        found.setdefault(group, []).append(k)
    return [found[group] for group in sorted(found)]


def group_model(group: GroupId) -> str:
    """Return the name under which a group's model is stored."""
    return f"group/{group}"


def nova_model(*, received: Tree, mean: Tree) -> Tree:
    """Return the model after FedNova's server step; running statistics are plain means."""
    count = float(mean["effective_steps"][0])
    new = fednova(received["trainable"], mean["trainable"], count)
    return {"trainable": new, "buffers": mean["buffers"]}


def adam_model(
    *, received: Tree, mean: Tree, moments: Tree | None, how: ServerSettings
) -> dict[str, np.ndarray]:
    """Return the model after FedAdam's server step and its moments, in one tree."""
    zero = np.zeros_like(received["trainable"])
    first, second = (zero, zero) if moments is None else (moments["first"], moments["second"])
    knobs = {"lr": how.lr, "beta1": how.beta1, "beta2": how.beta2, "tau": how.tau}
    new, first, second = fedadam(received["trainable"], mean["trainable"], first, second, **knobs)
    return {
        "model/trainable": new,
        "model/buffers": np.asarray(mean["buffers"]),
        "moments/first": first,
        "moments/second": second,
    }


def part_of(*, tree: Tree, part: str) -> dict[str, Any]:
    """Return the arrays of ``tree`` below ``part``."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): a for name, a in tree.items() if name.startswith(prefix)}

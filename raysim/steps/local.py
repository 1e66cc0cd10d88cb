"""What a client does in a round.

Train the received model on its own images and its current labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysim.errors import ClientFailed
from raysim.models.cohort import Member, train_cohort
from raysim.models.threads import one_thread, torch_device
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import dense_widths
from raysim.protocols import Client, ClientId, Contribution, Stacked, Tree, runs_together
from raysim.seeding import stream


def current_labels(client: Client, memory: Tree) -> np.ndarray:
    """Return the corrected labels where a correction wrote them, else the given ones."""
    return np.asarray(memory.get("labels", client.record.labels))


def train_together(
    clients: Sequence[Client], memories: Sequence[Tree], arguments: Sequence[Mapping[str, Any]]
) -> Iterator[Stacked] | None:
    """Train all clients of an actor in stacks, where the model has a closed form."""
    if not clients or arguments[0]["train"].kernel != "closed_form":
        return None
    return _train_stacks(clients, memories, arguments)


def _train_stacks(
    clients: Sequence[Client], memories: Sequence[Tree], arguments: Sequence[Mapping[str, Any]]
) -> Iterator[Stacked]:
    shared = arguments[0]
    widths = dense_widths(shared["model"], shared["image_shape"], shared["classes"])
    assert widths is not None  # the kernel was chosen for this model
    labels = [current_labels(c, m) for c, m in zip(clients, memories, strict=True)]
    for group in sorted({a["group"] for a in arguments}):
        places = [i for i, a in enumerate(arguments) if a["group"] == group]
        members = [_member(clients[i], labels[i], shared) for i in places]
        for done in train_cohort(widths, shared["models"][group], members, shared["train"]):
            chosen = [places[p] for p in done.places]
            ids = tuple(clients[i].id for i in chosen)
            _refuse_diverged(ids, done.trainable, shared["train"])
            yield Stacked(
                ids,
                tuple({"loss": r.loss, "samples": r.samples} for r in done.reports),
                {"trainable": done.trainable, "buffers": np.zeros((len(ids), 0), np.float32)},
                np.array([_weight(shared, len(labels[i])) for i in chosen]),
            )


def _member(client: Client, labels: np.ndarray, shared: Mapping[str, Any]) -> Member:
    return Member(
        images=lambda: client.world.images(client.sample_ids),
        labels=labels,
        rng=lambda: stream(shared["seed"], "train", shared["round"], client.id),
    )


def _refuse_diverged(ids: Sequence[ClientId], trainable: np.ndarray, train: TrainSettings) -> None:
    finite = np.isfinite(trainable).all(axis=1)
    if not finite.all():
        raise ClientFailed(
            ids[int(np.argmin(finite))],
            "train_task",
            f"training diverged: the weights are not finite with {train.optimizer} and lr "
            f"{train.lr:g}; lower train.lr",
        )


def _weight(shared: Mapping[str, Any], samples: int) -> float:
    return 1.0 if shared["weights"] == "uniform" else float(max(samples, 1))


@runs_together(train_together)
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
    weight = _weight(arguments, len(labels))
    return memory, Contribution(tree, weight, {"loss": report.loss, "samples": report.samples})


def participants(
    clients: list[ClientId], train: TrainSettings, *, seed: int, round_id: int
) -> list[ClientId]:
    """Return the clients of this round: max(int(C N), 1), uniform without replacement."""
    share = train.participation * len(clients)
    count = max(math.floor(share + 1e-9), 1)  # 0.29 * 100 is 28.999... in binary
    if count >= len(clients):
        return list(clients)
    rng = stream(seed, "participation", round_id)
    return sorted(int(k) for k in rng.choice(np.asarray(clients), size=count, replace=False))

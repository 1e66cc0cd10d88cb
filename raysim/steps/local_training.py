"""What a client does in a round: train the received model on its images and current labels.

FB-NLL Algorithm 1, line 26; FedAvg's local update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysim.core.threads import one_thread, torch_device
from raysim.errors import ClientFailed
from raysim.models.evaluation import logits
from raysim.models.forms import closed_form
from raysim.models.params import image_shape_of
from raysim.models.stacked_training import Member, Trained, train_cohort
from raysim.models.training import (
    LARGEST_WEIGHT,
    TrainReport,
    TrainSettings,
    has_sane_weights,
    train_client,
)
from raysim.protocols import Client, ClientId, Contribution, Stacked, Tree, Where, stacked
from raysim.seeding import stream
from raysim.steps.server import tree_to_send


def current_labels(client: Client, memory: Tree) -> np.ndarray:
    """Return the corrected labels where a correction wrote them, else the given ones."""
    return np.asarray(memory.get("labels", client.record.labels))


def client_stream(arguments: Mapping[str, Any], client: Client) -> np.random.Generator:
    """Return the randomness of a client's work in a round."""
    where: Where = arguments["where"]
    return stream(arguments["seed"], where.stage, where.round, client.id)


def train_together(
    clients: Sequence[Client], memories: Sequence[Tree], arguments: Sequence[Mapping[str, Any]]
) -> Iterator[Stacked] | None:
    """Train all clients of an actor in stacks, where the model has a closed form."""
    own_step = any(arguments and name in arguments[0] for name in ("loss", "regulariser"))
    if not clients or own_step or not has_closed_step(arguments[0]["train"]):
        return None
    return _train_stacks(clients, memories, arguments)


def has_closed_step(train: TrainSettings) -> bool:
    """Whether local training runs by the closed form, not by autograd."""
    return train.kernel == "closed_form" and not train.mixup


def _train_stacks(
    clients: Sequence[Client], memories: Sequence[Tree], arguments: Sequence[Mapping[str, Any]]
) -> Iterator[Stacked]:
    shared = arguments[0]
    form = closed_form(shared["model"], shared["image_shape"], shared["classes"])
    assert form is not None  # the kernel was chosen for this model
    labels = [current_labels(c, m) for c, m in zip(clients, memories, strict=True)]
    for group in sorted({a["group"] for a in arguments}):
        places = [i for i, a in enumerate(arguments) if a["group"] == group]
        members = [_member(clients[i], labels[i], shared) for i in places]
        for done in train_cohort(form, shared["models"][group], members, shared["train"]):
            chosen = [places[p] for p in done.places]
            ids = tuple(clients[i].id for i in chosen)
            _refuse_diverged(ids, done.trainable, shared["train"])
            yield Stacked(
                ids,
                tuple(_reply(report) for report in done.reports),
                _stacked(shared, group, done),
                np.array([weight_of(shared, len(labels[i])) for i in chosen]),
            )


def _stacked(shared: Mapping[str, Any], group: int, done: Trained) -> Tree:
    """Return what the clients of a stack send, one row each."""
    empty = np.zeros(0, dtype=np.float32)
    received = shared["models"][group]
    rows = [
        tree_to_send(
            shared["server"],
            shared["train"],
            received=received,
            trained={"trainable": trainable, "buffers": empty},
            steps=report.steps,
        )
        for trainable, report in zip(done.trainable, done.reports, strict=True)
    ]
    if all(row["trainable"].base is done.trainable for row in rows):  # nothing was changed
        return {"trainable": done.trainable, "buffers": np.zeros((len(rows), 0), np.float32)}
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _member(client: Client, labels: np.ndarray, shared: Mapping[str, Any]) -> Member:
    return Member(
        images=lambda: client.world.images(client.sample_ids),
        labels=labels,
        rng=lambda: client_stream(shared, client),
    )


def _refuse_diverged(ids: Sequence[ClientId], trainable: np.ndarray, train: TrainSettings) -> None:
    sane = has_sane_weights(trainable, axis=1)
    if not sane.all():
        raise ClientFailed(
            ids[int(np.argmin(sane))],
            "train_task",
            f"training diverged: the weights are not finite or not below {LARGEST_WEIGHT:g}, with "
            f"{train.optimizer} and lr {train.lr:g}; lower train.lr",
        )


def weight_of(shared: Mapping[str, Any], samples: int) -> float:
    """Return how much a client counts in its group's mean (FB-NLL Algorithm 1, line 30)."""
    return 1.0 if shared["server"].weights == "uniform" else float(max(samples, 1))


def _reply(report: TrainReport) -> dict[str, Any]:
    return {"loss": report.loss, "samples": report.samples}


@stacked(train_together)
def train_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, Contribution]:
    """Reply with the model after E local epochs (FB-NLL Algorithm 1, line 26)."""
    tree, report = trained_model(client, current_labels(client, memory), arguments)
    return memory, contribution_of(tree, report, arguments)


def contribution_of(
    tree: Tree, report: TrainReport, arguments: Mapping[str, Any], **reply: Any
) -> Contribution:
    """Return what a client sends after its local training, and ``reply``."""
    sent = tree_to_send(
        arguments["server"],
        arguments["train"],
        received=arguments["models"][arguments["group"]],
        trained=tree,
        steps=report.steps,
    )
    weight = weight_of(arguments, report.samples)
    return Contribution(sent, weight, {**_reply(report), **reply})


def trained_model(
    client: Client, labels: np.ndarray, arguments: Mapping[str, Any]
) -> tuple[Tree, TrainReport]:
    """Return the client's model after its local epochs from the model of its group.

    ``loss`` and ``regulariser`` among the arguments are a method's own, such as
    ``methods.rhfl.SymmetricCrossEntropy`` and ``methods.fedcorr.PullToReceived``.
    """
    with one_thread("torch"):
        return train_client(
            arguments["model"],
            arguments["models"][arguments["group"]],
            client.world.images(client.sample_ids),
            labels,
            arguments["train"],
            rng=client_stream(arguments, client),
            classes=arguments["classes"],
            loss=arguments.get("loss"),
            regulariser=arguments.get("regulariser"),
            device=torch_device(),
            black=client.world.black,
        )


def client_logits(tree: Tree, images: np.ndarray, arguments: Mapping[str, Any]) -> np.ndarray:
    """Return the logits of a model on a client's images, by the run's kernel.

    ``batch_statistics`` among the arguments: batch norm uses those of the batch, as random weights
    need. ``normed_rows``: how many images form a batch if batch norm keeps no statistics.
    """
    model, classes = arguments["model"], arguments["classes"]
    if arguments["kernel"] == "closed_form":
        form = closed_form(model, image_shape_of(images), classes)
        assert form is not None  # the kernel was chosen for this model
        from raysim.models.closed_form import form_logits  # imports scipy

        return form_logits(form, tree["trainable"], images)
    how = {
        name: arguments[name] for name in ("batch_statistics", "normed_rows") if name in arguments
    }
    with one_thread("torch"):
        return logits(model, tree, images, classes=classes, device=torch_device(), **how)


def participants(
    clients: list[ClientId], train: TrainSettings, *, seed: int, round_id: int, role: str = "train"
) -> list[ClientId]:
    """Return the clients of this round, uniform without replacement."""
    count = num_participants(len(clients), train.participation)
    if count >= len(clients):
        return list(clients)
    rng = stream(seed, "participation" if role == "train" else f"participation/{role}", round_id)
    return sorted(int(k) for k in rng.choice(np.asarray(clients), size=count, replace=False))


def num_participants(clients: int, participation: float) -> int:
    """Return how many of so many clients take part in a round: max(int(C N), 1)."""
    return max(math.floor(participation * clients + 1e-9), 1)  # 0.29 * 100 is 28.999... in binary

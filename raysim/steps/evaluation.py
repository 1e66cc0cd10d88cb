"""Accuracy of every client's model on the clean test images of its task.

raysim/docs/sheets/metrics.md, "Accuracy of a client".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raysim.core.selection import sieved
from raysim.models.evaluation import score, top_accuracy
from raysim.protocols import Client, ClientId, Context, OwnModels, State, Tree
from raysim.settings import check, settings
from raysim.steps.local_training import client_logits

KINDS = ("accuracy", "loss")


@settings
class EvaluateSettings:
    """When clients are evaluated; the last round always is."""

    every: int = 1
    top5: bool = False
    """Also record how often the label is among the five largest logits (FedRN, WebVision)."""
    f_score: bool = False
    """At the end, have every client's model judge its training labels, by one rule for all methods
    (FedFixer Fig. 3)."""

    def __post_init__(self) -> None:
        check(self.every >= 1, "every", "must be at least 1", got=self.every)


def is_due(context: Context) -> bool:
    """Whether this round ends with an evaluation."""
    return context.last or (context.round + 1) % context.config.evaluate.every == 0


def evaluate_clients(context: Context, state: State) -> None:
    """Record each client's accuracy; a (model, task) pair shared by many clients runs once."""
    tasks = context.test_classes()
    pairs = {k: (state.groups[k], tasks[k]) for k in context.federation.clients}
    first = {pair: k for k, pair in sorted(pairs.items(), reverse=True)}
    each = {k: {"own_group": g, "test_classes": task} for (g, task), k in first.items()}
    needed = sorted({g for g, _ in first})
    replies = context.federation.map(
        evaluate_task,
        on=sorted(first.values()),
        each=each,
        models=OwnModels(
            {g: state.models[f"group/{g}"] for g in needed}, {k: g for (g, _), k in first.items()}
        ),
        model=context.config.model,
        kernel=context.config.train.kernel,
        classes=context.classes,
        top5=context.config.evaluate.top5,
    )
    record_scores(context, {k: replies[first[pair]] for k, pair in pairs.items()})


def judge_labels(context: Context, state: State) -> None:
    """Record how well the final models tell right labels from wrong.

    A label is taken for right if its loss is at most the mean over all classes (FedFixer Eq. 3;
    raysim/docs/sheets/metrics.md, "F-score of clean samples").
    """
    groups = {k: state.groups[k] for k in context.federation.clients}
    masks = context.federation.map(
        judge_task,
        each={k: {"own_group": g} for k, g in groups.items()},
        models=OwnModels({g: state.models[f"group/{g}"] for g in set(groups.values())}, groups),
        model=context.config.model,
        kernel=context.config.train.kernel,
        classes=context.classes,
    )
    context.observe_selection(masks, by="judged")


def judge_task(client: Client, memory: Tree, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
    """Reply with a mask of the given labels that the client's model takes for right."""
    images, labels = client.world.images(client.sample_ids), client.record.labels
    found = client_logits(arguments["models"][arguments["own_group"]], images, arguments)
    return memory, sieved(found, labels)


def record_scores(context: Context, scores: Mapping[ClientId, Mapping[str, float]]) -> None:
    """Record accuracy and test loss from each client's own, over all clients and per task.

    Top-5 accuracy is recorded too if every client has it.
    """
    tasks = context.test_classes()
    found = {what: np.array([scores[k][what] for k in sorted(scores)]) for what in KINDS}
    own = [tasks[k] for k in sorted(scores)]
    members = {t: np.array([other == t for other in own]) for t in dict.fromkeys(own)}
    context.record(
        accuracy={"mean": float(found["accuracy"].mean()), "std": float(found["accuracy"].std())},
        test_loss=float(found["loss"].mean()),
        by_task={w: [float(found[w][m].mean()) for m in members.values()] for w in KINDS},
    )
    if all("top5" in own for own in scores.values()):
        top5 = np.array([scores[k]["top5"] for k in sorted(scores)])
        context.record(top5={"mean": float(top5.mean()), "std": float(top5.std())})
    if context.last:
        context.record(per_client=found["accuracy"].tolist())


def evaluate_task(
    client: Client, memory: Tree, arguments: Mapping[str, Any]
) -> tuple[Tree, dict[str, float]]:
    """Reply with accuracy over all C logits and mean loss on the task's test images."""
    images, labels = client.world.test_set(arguments["test_classes"])
    tree = arguments["models"][arguments["own_group"]]
    return memory, logit_scores(client_logits(tree, images, arguments), labels, arguments)


def logit_scores(
    found: np.ndarray, labels: np.ndarray, arguments: Mapping[str, Any]
) -> dict[str, float]:
    """Return accuracy, loss and, where it is asked for, top-5 accuracy of logits (N, C)."""
    scores = score(found, labels)
    top5 = {"top5": top_accuracy(found, labels)} if arguments.get("top5") else {}
    return {"accuracy": scores.accuracy, "loss": scores.loss, **top5}

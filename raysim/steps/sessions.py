"""A client's own networks inside a task, for methods that write their local training themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from raysim.core.threads import one_thread, torch_device
from raysim.models.sessions import Session, open_session
from raysim.protocols import Client, Contribution, Tree
from raysim.steps.local_training import client_stream, current_labels, weight_of

SMALLEST_WEIGHT = 1e-6
"""Of a client that selected nothing: a mean needs weights above zero."""


def received_model(arguments: Mapping[str, Any]) -> Tree:
    """Return the model that the client's group sent."""
    tree: Tree = arguments["models"][arguments["group"]]
    return tree


@contextmanager
def client_session(
    client: Client,
    memory: Tree,
    arguments: Mapping[str, Any],
    *,
    trees: Sequence[Tree] | None = None,
    labels: np.ndarray | None = None,
) -> Iterator[Session]:
    """Open networks with ``trees`` (default: one, the received model) and the client's samples."""
    with (
        one_thread("torch"),
        open_session(
            arguments["model"],
            [received_model(arguments)] if trees is None else trees,
            client.world.images(client.sample_ids),
            current_labels(client, memory) if labels is None else labels,
            arguments["train"],
            rng=client_stream(arguments, client),
            classes=arguments["classes"],
            device=torch_device(),
            black=client.world.black,
        ) as session,
    ):
        session.sent, session.scratch = arguments, client.scratch
        yield session


def sent_model(
    session: Session, *, tree: Tree | None = None, weight: float | None = None, **reply: Any
) -> Contribution:
    """Return what goes to the server: the first network (or ``tree``), its weight, the reply."""
    count = len(session.labels)
    return Contribution(
        session.tree() if tree is None else tree,
        weight_of(session.sent, count) if weight is None else max(weight, SMALLEST_WEIGHT),
        {"loss": session.loss, "samples": count, **reply},
    )

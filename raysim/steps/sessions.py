"""A client's own networks inside a task, for methods that write their local training themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.models.sessions import Session
from raysim.protocols import Contribution, Tree
from raysim.steps.local_training import weight_of

SMALLEST_WEIGHT = 1e-6
"""Of a client that selected nothing: a mean needs weights above zero."""


def received_model(arguments: Mapping[str, Any]) -> Tree:
    """Return the model that the client's group sent."""
    tree: Tree = arguments["models"][arguments["group"]]
    return tree


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

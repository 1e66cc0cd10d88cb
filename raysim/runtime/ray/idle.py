"""Client actors kept between two runs of one process: starting one costs seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from raysim.runtime.placement import ShareSettings

_idle: list[tuple[str, ShareSettings, str, Any]] = []
"""Ray session, share, node and actor; a session that ended took its actors along."""
ANSWER_S = 5.0
"""An idle actor that does not answer within this time is not used again."""


def keep(share: ShareSettings, actors: Sequence[Any], nodes: Sequence[str]) -> None:
    """Keep actors for the next run; they let go of their clients."""
    for actor, node in zip(actors, nodes, strict=True):
        actor.release.remote()
        _idle.append((_session(), share, node, actor))


def take(share: ShareSettings, homes: Sequence[str]) -> dict[int, Any]:
    """Return idle actors with this share by position in ``homes``, where they already sit.

    All others end, to free resources.
    """
    found: dict[int, Any] = {}
    while _idle:
        session, its_share, node, actor = _idle.pop()
        if session != _session():
            continue
        free = (i for i, home in enumerate(homes) if home == node and i not in found)
        place = next(free, None)
        if its_share == share and place is not None and _answers(actor):
            found[place] = actor
        else:
            ray.kill(actor)
    return found


def end_idle_actors() -> None:
    """End every idle actor."""
    while _idle:
        session, *_, actor = _idle.pop()
        if ray.is_initialized() and session == _session():
            ray.kill(actor)


def _session() -> str:
    context = ray.get_runtime_context()  # a handle is worth nothing to another job either
    return f"{context.get_node_id()}/{context.get_job_id()}"


def _answers(actor: Any) -> bool:
    try:
        ray.get(actor.describe.remote(), timeout=ANSWER_S)
    except (RayError, GetTimeoutError):
        return False
    return True

"""Client actors kept between two runs of one process: starting one costs seconds."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from raysim.runtime.placement import ShareSettings

_idle: list[tuple[str, ShareSettings, Any]] = []
"""Ray session, share and actor; a session that ended took its actors along."""
ANSWER_S = 5.0
"""An idle actor that does not answer within this time is not used again."""


def keep(share: ShareSettings, actors: list[Any]) -> None:
    """Keep actors for the next run; they let go of their clients."""
    for actor in actors:
        actor.release.remote()
        _idle.append((_session(), share, actor))


def take(share: ShareSettings, count: int) -> list[Any]:
    """Return at most ``count`` idle actors with this share; all others end, to free resources."""
    found: list[Any] = []
    while _idle:
        session, its_share, actor = _idle.pop()
        if session != _session():
            continue
        if its_share == share and len(found) < count and _answers(actor):
            found.append(actor)
        else:
            ray.kill(actor)
    return found


def end_idle_actors() -> None:
    """End every idle actor."""
    while _idle:
        session, _, actor = _idle.pop()
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

"""What counts as a lost actor, a lost object, or a client's own mistake."""

from __future__ import annotations

import logging
import re
from collections import Counter

from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)

from raysim.errors import EnvironmentNotFit, ModelsLost, RaysimError, WorkerLost
from raysim.protocols import Where

log = logging.getLogger(__name__)
LOST = (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,  # what Ray raises when its memory monitor killed the actor
    WorkerCrashedError,
)
FAILED = (RayTaskError, ObjectLostError)
"""What is left after ``LOST``: the actor lives, its task raised."""
LOST_MODEL = "a stored model was lost with its node; go on from the last checkpoint with --resume"


class Losses:
    """Counts what was lost since the last commit, and ends the run when it is too much."""

    def __init__(self, what: str, max_restarts: int) -> None:
        self._what, self._max_restarts = what, max_restarts
        self._since_commit: Counter[int] = Counter()
        self.restarts = 0

    def allow(
        self,
        index: int,
        reason: Exception,
        *,
        where: Where | None,
        during: str,
        node: str,
        call: int | None = None,
        announced: bool = False,
    ) -> None:
        """Count a loss; raise ``WorkerLost`` once there were more than allowed.

        ``announced``: its node was draining, so that nothing is wrong with the run.
        """
        first_line = str(reason).strip().splitlines()[0] if str(reason).strip() else repr(reason)
        restarts = self._since_commit[index]
        if restarts >= self._max_restarts and not announced:
            raise WorkerLost(
                f"{self._what} {index} on node {node} was lost {restarts + 1} times since the "
                f"last commit (runtime.max_restarts is {self._max_restarts}); last reason: "
                f"{first_line}. If memory ran out, lower runtime.actors or train.batch_size; the "
                "run can be continued with --resume"
            ) from reason
        if not announced:
            self._since_commit[index] += 1
            self.restarts += 1
        facts: dict[str, object] = {"event": "lost", "actor": f"{self._what} {index}", "node": node}
        facts |= {"during": during, "call": call} | ({"preempted": True} if announced else {})
        log.warning(
            "%s %d on node %s was lost in %s during %s (%s); rebuilding it",
            *(self._what, index, node, where or "setup", during, first_line),
            extra={"facts": facts},
        )

    def forgive(self) -> None:
        """Begin to count anew: a commit was made."""
        self._since_commit.clear()


def is_other_actor(wrong: Exception) -> bool:
    """Whether a task could not start because an actor died that should have sent an argument."""
    cause = getattr(wrong, "cause", None)
    return (
        isinstance(wrong, RayTaskError)
        and isinstance(cause, LOST)
        and not isinstance(cause, ObjectLostError)
    )


def refuse_lost_objects(wrong: Exception) -> None:
    """Raise if the actor lives and only what it was to fetch died with another node."""
    if isinstance(wrong, RayTaskError):
        raise ModelsLost(LOST_MODEL) from wrong


def original(wrong: Exception) -> Exception:
    """Return the exception the task raised, not Ray's wrapper around it."""
    cause = getattr(wrong, "cause", None)
    if isinstance(cause or wrong, ObjectLostError):
        return ModelsLost(LOST_MODEL)
    if isinstance(cause, RaysimError):
        return cause
    missing = re.search(r"No module named '([\w.]+)'", str(wrong))
    if missing is not None:  # a task or settings of a module that is only on the driver's path
        return EnvironmentNotFit(
            f"Ray's workers cannot import {missing[1]!r}; start raysim (and Ray) in the folder "
            "that holds it, install it on every node, or use `raysim submit`, which sends it"
        )
    return WorkerLost(str(wrong)) if isinstance(wrong, LOST) else wrong

"""What to do about a lost actor. Pure: facts in, decision out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rebuild:
    """Make the actor anew from committed memory and replay its calls."""


@dataclass(frozen=True)
class GiveUp:
    """Stop the run with this message."""

    message: str


def decide(*, actor: str, reason: str, restarts: int, max_restarts: int) -> Rebuild | GiveUp:
    """Return what follows the loss of ``actor``, rebuilt ``restarts`` times so far."""
    if restarts < max_restarts:
        return Rebuild()
    return GiveUp(
        f"{actor} was lost {restarts + 1} times since the last commit (runtime.max_restarts is "
        f"{max_restarts}); last reason: {reason}. If memory ran out, lower runtime.actors or "
        "train.batch_size; the run can be continued with --resume"
    )

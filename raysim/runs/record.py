"""What the records of a run say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Records = Sequence[Mapping[str, Any]]


def newest(records: Records, key: str) -> Any:
    """Return what was recorded last under ``key``; None if nothing was."""
    return next((record[key] for record in reversed(records) if key in record), None)


def bytes_by_message(records: Records, direction: str) -> dict[str, int]:
    """Return the bytes of every message that went ``up`` or ``down``."""
    counts: dict[str, int] = {}
    for record in records:
        for message, nbytes in record.get("bytes", {}).get(direction, {}).items():
            counts[message] = counts.get(message, 0) + nbytes
    return counts


def correction(records: Records) -> dict[str, Any] | None:
    """Return how FB-NLL corrected labels first, and what came of its phases; None: it did not."""
    found = next((record for record in records if "correction" in record), None)
    return None if found is None else {**found["correction"], **found.get("phases", {})}


def association(records: Records) -> dict[str, int] | None:
    """Return how often IFCA forced groups, and the last round that changed them (metrics.md 2)."""
    forced = [record["association"]["forced"] for record in records if "association" in record]
    if not forced:
        return None
    grouped = [(record["round"], record["groups"]) for record in records if "groups" in record]
    changed = [later[0] for before, later in pairwise(grouped) if before[1] != later[1]]
    return {"forced": sum(forced), "last_change": max(changed, default=0)}

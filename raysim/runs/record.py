"""What a round says: ``RoundRecord``, a line of rounds.jsonl.

Only this module knows how a record is laid out as JSON. Keys that a user's own method adds with
``context.record(...)``, and those of other versions of raysim, are kept as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from raysim.storage.files import json_text

Scores = Mapping[str, float | None]
"""Scores by name; None where one is undefined."""
TIMES = ("seconds", "restarts")
"""Entries that may differ between two runs with equal bits."""


@dataclass(frozen=True)
class RoundRecord:
    """One round's record. A field is None where the round did not say it."""

    stage: str = ""
    round: int = 0
    """Counted from 1, in its stage."""
    seconds: float = 0.0
    loss: float | None = None
    """Mean training loss."""
    test_loss: float | None = None
    accuracy: Mapping[str, float] | None = None
    """``mean`` and ``std`` over clients, each on its own task."""
    top5: Mapping[str, float] | None = None
    by_task: Mapping[str, Sequence[float]] | None = None
    """Mean ``accuracy`` and ``loss`` of every task's clients."""
    per_client: Sequence[float] | None = None
    """Accuracy of every client, in the last round of a stage."""
    groups: Sequence[int] | None = None
    """Group of every client."""
    ari: float | None = None
    nmi: float | None = None
    purity: float | None = None
    rank: int | None = None
    """Eigenvectors that were compared, in a round that makes groups from spectra."""
    auto: Mapping[str, Any] | None = None
    """How sure the number of groups is that was found."""
    labels: Scores | None = None
    """Share of wrong labels, ``noise_before`` and ``noise_after``, and how they were corrected."""
    correction: Mapping[str, Any] | None = None
    phases: Mapping[str, int] | None = None
    association: Mapping[str, Any] | None = None
    selection: Scores | None = None
    selection_of_wrong: Scores | None = None
    judged: Scores | None = None
    judged_of_wrong: Scores | None = None
    noisy_clients: Mapping[str, Any] | None = None
    """Who was ``found``, and how right that is."""
    late: Sequence[int] | None = None
    """Clients that the round did not wait for."""
    sent: Mapping[str, Mapping[str, int]] | None = None
    """Bytes by direction and message; ``bytes`` in JSON."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """What no field holds: other keys, nulls, and values of another kind than the field's."""
    order: tuple[str, ...] = field(default=(), compare=False)
    """Keys in the order in which they were recorded."""

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> RoundRecord:
        """Return the record; a value that does not fit its field stays in ``more``."""
        fitting, more = {}, {}
        for key, value in plain.items():
            kind = KINDS.get(key)
            if kind is not None and isinstance(value, kind) and not isinstance(value, bool):
                fitting["sent" if key == "bytes" else key] = value
            else:
                more[key] = value
        return cls(**fitting, more=more, order=tuple(plain))

    def to_json(self) -> dict[str, Any]:
        """Return what was recorded, in its order."""
        held = {key: getattr(self, "sent" if key == "bytes" else key) for key in KINDS}
        plain = {key: value for key, value in held.items() if value is not None} | {**self.more}
        return {key: plain[key] for key in self.order or plain}

    def has(self, key: str) -> bool:
        """Whether the round recorded ``key``, be it null."""
        return key in (self.order or self.to_json())

    def get(self, key: str) -> Any:
        """Return what was recorded under ``key``; None if nothing was."""
        if key in KINDS and key not in self.more and self.has(key):
            return getattr(self, "sent" if key == "bytes" else key)
        return self.more.get(key)

    def number(self, *path: str) -> float | None:
        """Return the finite number at a path like ("accuracy", "mean"), or None."""
        return finite_number(self.get(path[0]), *path[1:])

    def messages(self, direction: str) -> dict[str, int]:
        """Return the bytes that went "up" or "down", by message."""
        found = (self.sent or {}).get(direction)
        if not isinstance(found, Mapping):
            return {}
        return {m: n for m, n in found.items() if finite_number(n) is not None}

    def bytes(self, direction: str) -> int:
        """Return the bytes that went "up" or "down"."""
        return sum(self.messages(direction).values())

    def flat(self) -> dict[str, Any]:
        """Return what was recorded without its lists: sections become ``section_name``."""
        row: dict[str, Any] = {}
        for key, value in self.to_json().items():
            if key == "accuracy" and self.accuracy is not None:
                row |= {"accuracy": self.accuracy["mean"], "accuracy_std": self.accuracy["std"]}
            elif key == "bytes":
                for direction in self.sent or ():
                    sent = self.messages(direction)
                    row[f"{direction}_bytes"] = sum(sent.values())
                    row |= {f"{direction}_bytes_{what}": n for what, n in sent.items()}
            elif key == "by_task":
                for what, values in (self.by_task or {}).items():
                    row |= {f"{what}_task_{i}": v for i, v in enumerate(values)}
            elif key == "late":
                row["late"] = len(self.late or ())
            else:
                row |= _flat(key, value)
        return row

    @property
    def noise(self) -> tuple[float, float] | None:
        """Share of wrong labels before and after correction."""
        before, after = (self.number("labels", f"noise_{when}") for when in ("before", "after"))
        return None if before is None or after is None else (before, after)

    @property
    def num_groups(self) -> int | None:
        """How many groups have clients."""
        return None if self.groups is None else len(set(self.groups))


_KINDS: dict[str, Any] = {"str": str, "int": int, "float": int | float}
_KINDS |= {"Mapping": Mapping, "Scores": Mapping, "Sequence": list | tuple}
KINDS = {
    "bytes" if f.name == "sent" else f.name: _KINDS[str(f.type).split(" ")[0].split("[")[0]]
    for f in fields(RoundRecord)
    if f.name not in ("more", "order")
}
"""What the value of a key must be to become a field."""


def _flat(name: str, value: Any) -> dict[str, Any]:
    """Return a value of a record by its name; of a section, its values by theirs."""
    if isinstance(value, Mapping):
        parts = (_flat(f"{name}_{inner}", below) for inner, below in value.items())
        return {key: number for part in parts for key, number in part.items()}
    return {} if isinstance(value, list) else {name: value}


def finite_number(value: Any, *path: str) -> float | None:
    """Return the finite number at a path of a JSON value, or None."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


# ---- lines of rounds.jsonl ---------------------------------------------------------------------


def parse_records(text: str) -> tuple[list[RoundRecord], dict[int, str]]:
    """Return the records of rounds.jsonl, and by number the lines that are damaged and why.

    What has no newline was torn while it was written, or is still being written: it is left out.
    """
    records, damaged = [], {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            plain = json.loads(line)
        except ValueError as wrong:
            damaged[number] = str(wrong)
            continue
        if isinstance(plain, dict):
            records.append(RoundRecord.from_json(plain))
        else:
            damaged[number] = f"a {type(plain).__name__} is no record"
    return records, damaged


def format_records(records: Sequence[RoundRecord]) -> str:
    return "".join(json_text(record.to_json()) + "\n" for record in records)


def records_digest(records: Sequence[RoundRecord]) -> str:
    """Return the sha256 of the records without their times."""
    plain = [{k: v for k, v in r.to_json().items() if k not in TIMES} for r in records]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# ---- what the records of a run say together ------------------------------------------------------


def newest(records: Sequence[RoundRecord], name: str) -> Any:
    """Return what was recorded last under ``name``, be it null; None if nothing was.

    Results use this: where the last judgement is undefined, so is the result's.
    """
    return next((record.get(name) for record in reversed(records) if record.has(name)), None)


def newest_known(records: Sequence[RoundRecord], name: str) -> Any:
    """Return the last value under ``name`` that is not null; frames and reports show this."""
    values = (record.get(name) for record in reversed(records) if record.has(name))
    return next((value for value in values if value is not None), None)


def bytes_by_message(records: Sequence[RoundRecord], direction: str) -> dict[str, int]:
    """Return the bytes of every message that went "up" or "down"."""
    counts: dict[str, int] = {}
    for record in records:
        for message, nbytes in record.messages(direction).items():
            counts[message] = counts.get(message, 0) + nbytes
    return counts


def correction(records: Sequence[RoundRecord]) -> dict[str, Any] | None:
    """Return how FB-NLL corrected labels first, and what came of its phases; None: it did not."""
    first = next((record for record in records if record.correction is not None), None)
    return None if first is None else {**(first.correction or {}), **(first.phases or {})}


def association(records: Sequence[RoundRecord]) -> dict[str, int] | None:
    """Return how often IFCA forced groups, and the last round that changed them."""
    forced = [r.association["forced"] for r in records if r.association is not None]
    if not forced:
        return None
    grouped = [(record.round, record.groups) for record in records if record.groups is not None]
    changed = [later[0] for before, later in pairwise(grouped) if before[1] != later[1]]
    return {"forced": sum(forced), "last_change": max(changed, default=0)}

"""What was run, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from raysim.report.records import Run
from raysim.runs.record import finite_number

MOST = 6
"""Values that differ are listed up to this many."""


def what_ran(runs: Sequence[Run]) -> str:
    """Return clients, tasks, data, noise, rounds, seeds, date and version; what differs is said."""
    series: dict[str, list[Run]] = {}
    for run in runs:
        series.setdefault(run.series, []).append(run)
    noises = [_part_of_data(run, "noise") for run in runs]
    others = dict.fromkeys(key for noise in noises for key in noise if key != "kind")
    parts = [
        _part("clients", [_clients(run) for run in runs], "{}"),
        _part("tasks", [_tasks(run) for run in runs], "{}"),
        _part("data", [run.dataset for run in runs], "{}"),
        _part("noise", [_noise_kind(noise) for noise in noises], "{}"),
        *(_part(f"noise {k}", [n.get(k) for n in noises], f"noise {k} {{}}") for k in others),
        _part("rounds", [_count(run.rounds, "round") for run in runs], "{}"),
        _part("seeds", [_ranges(run.seed for run in own) for own in series.values()], "seeds {}"),
        _part("dates", [run.date for run in runs], "{}"),
        _part("versions of raysim", [_version(run) for run in runs], "raysim {}"),
    ]
    return " · ".join(part for part in parts if part)


def _ranges(numbers: Iterable[int]) -> str:
    """Return "0-2, 5" for 0, 1, 2 and 5."""
    ordered = enumerate(sorted(set(numbers)))
    spans = [[n for _, n in s] for _, s in groupby(ordered, key=lambda pair: pair[1] - pair[0])]
    return ", ".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)


def _part(name: str, values: Sequence[Any], form: str) -> str:
    """Return the value that all runs share, or that they differ and how; of a file its name."""
    known = [str(v) for v in values if v not in (None, "")]
    if not known:
        return ""
    words = [Path(w).name if Path(w).is_absolute() else w for w in dict.fromkeys(known)]
    some = "" if len(known) == len(values) else f" (in {len(known)} of {len(values)} runs)"
    if len(words) == 1:
        return form.format(words[0]) + some
    if len(words) > MOST:
        words = [*words[: MOST - 1], f"and {len(words) - MOST + 1} more"]
    verb = "differ" if name.endswith("s") else "differs"
    return f"{name} {verb}: {'; '.join(words)}{some}"


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def _part_of_data(run: Run, name: str) -> Mapping[str, Any]:
    data = run.config.get("data")
    found = data.get(name) if isinstance(data, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _clients(run: Run) -> str:
    stored = finite_number(run.federation, "clients")
    asked = finite_number(_part_of_data(run, "partition"), "clients")
    return _count(int(stored or asked or 0), "client")


def _tasks(run: Run) -> str:
    tasks = run.federation.get("tasks")
    asked = finite_number(_part_of_data(run, "partition"), "groups")
    return _count(len(tasks) if isinstance(tasks, list) else int(asked or 0), "task")


def _noise_kind(noise: Mapping[str, Any]) -> str:
    kind = noise.get("kind")
    return "no noise" if kind == "none" else f"{kind} noise" if kind else ""


def _version(run: Run) -> str:
    packages = run.environment.get("packages")
    return str(packages.get("raysim", "")) if isinstance(packages, Mapping) else ""

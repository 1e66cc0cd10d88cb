"""Runs side by side: the seeds of one config are a series; series of one setting compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysim.report.records import Run

NO_MATTER = ("name", "seed", "imports", "output", "runtime", "checkpoint", "track", "arrays")
"""Sections of a config that two seeds of one series may differ in."""
NOT_THE_DATA = ("data.root", "data.features", "data.correction_features")
"""Keys below ``data`` that say how a method looks at the data, not which data there are."""
TELLING = ("data.dataset", "data.partition", "data.noise", "train.rounds", "data", "method")
"""Keys whose differences name a series, best first; then any other."""


@dataclass(frozen=True)
class Series:
    """The seeds of one method in one setting."""

    label: str
    """The method, and what tells it apart from all other series."""
    short: str
    """The same, among the series of its setting."""
    setting: str
    """Series with equal settings (data, partition, noise, rounds, swept ones) may be compared."""
    runs: Sequence[Run]
    """One per seed, ascending: the finished ones, or all where none is."""

    @property
    def is_finished(self) -> bool:
        return self.runs[0].is_finished

    @property
    def progress(self) -> str:
        """How far an unfinished series is; empty for a finished one."""
        if self.is_finished:
            return ""
        return f"not finished: {self.runs[0].rounds_done} of {self.runs[0].rounds} rounds"


def group_runs(runs: Sequence[Run], swept: Sequence[str] = ()) -> tuple[list[Series], list[str]]:
    """Return the series in the order of the runs, and what speaks against comparing them.

    Settings that were ``swept`` make runs differ in their setting, never in their method.
    """
    problems: list[str] = []
    members: dict[str, list[Run]] = {}
    for run in runs:
        flat = _flat(run.config)
        own = {k: v for k, v in flat.items() if _below(k, swept)}
        members.setdefault(_key(flat, NO_MATTER) + _key(own, ()), []).append(run)
    found = [_one_per_seed(group, problems) for group in members.values()]
    settings = [setting_of(group[0], swept) for group in found]
    data = found[0][0].dataset or "data"
    names = [differences(setting, settings) or data for setting in settings]
    shorts = _labels([group[0] for group in found], settings, (*NO_MATTER, *swept))
    several = len(set(names)) > 1
    series = [
        Series(
            label=f"{short} ({name})" if several else short,
            short=short,
            setting=name,
            runs=[
                replace(run, label=f"{short}, seed {run.seed}" + (f" ({name})" if several else ""))
                for run in group
            ],
        )
        for short, name, group in zip(shorts, names, found, strict=True)
    ]
    groups = by_setting(series)
    if len({_key(setting, swept) for setting in settings}) > 1:
        listed = "; ".join(f"{name} ({len(group)})" for name, group in groups.items())
        problems.append(
            f"The runs have {len(groups)} settings, which are not compared with each other: "
            f"{listed}."
        )
    return series, problems


def by_setting(series: Sequence[Series]) -> dict[str, list[Series]]:
    """Return the series that may be compared, by the name of their setting."""
    groups: dict[str, list[Series]] = {}
    for one in series:
        groups.setdefault(one.setting, []).append(one)
    return groups


def _one_per_seed(runs: Sequence[Run], problems: list[str]) -> list[Run]:
    """Keep one run per seed, finished ones only where there are any."""
    kept: dict[int, Run] = {}
    for run in sorted(runs, key=lambda r: (r.seed, not r.is_finished, -r.rounds_done)):
        if run.seed in kept:
            problems.append(
                f"{run.root}: the same config and seed as {kept[run.seed].root}; left out."
            )
        else:
            kept[run.seed] = run
    finished = [run for run in kept.values() if run.is_finished]
    if finished and len(finished) < len(kept):
        problems += [
            f"{run.root}: left out, since other seeds of {run.method} are finished."
            for run in kept.values()
            if not run.is_finished
        ]
    return finished or list(kept.values())


# ---- names ---------------------------------------------------------------------------------


def _labels(
    runs: Sequence[Run], settings: Sequence[Mapping[str, Any]], without: Sequence[str]
) -> list[str]:
    """Return a short label for each run that no other of its setting has."""
    labels = []
    for run, setting in zip(runs, settings, strict=True):
        same = [
            _flat(other.config, without)
            for other, theirs in zip(runs, settings, strict=True)
            if other.method == run.method and theirs == setting
        ]
        words = differences(_flat(run.config, without), same)
        labels.append(f"{run.method}, {words}" if words else run.method)
    return labels


def differences(own: Mapping[str, Any], every: Sequence[Mapping[str, Any]]) -> str:
    """Return about the fewest values that tell a flat config apart from all the others."""

    def rank(key: str) -> tuple[int, str]:
        return next((i for i, p in enumerate(TELLING) if _below(key, (p,))), len(TELLING)), key

    keys = sorted({key for one in every for key in one}, key=rank)
    chosen: list[str] = []
    parts = 1
    wanted = len({_key(one, ()) for one in every})
    for key in keys:
        told = len({_key({k: one.get(k) for k in (*chosen, key)}, ()) for one in every})
        if told > parts:
            chosen.append(key)
            parts = told
        if parts == wanted:
            break
    return ", ".join(_word(key, own.get(key)) for key in chosen)


def _word(key: str, value: Any) -> str:
    *_, parent, name = ("", *key.split("."))
    if name in ("name", "kind"):
        return str(value) if parent == "dataset" else f"{parent} {value or 'none'}"
    shown = "none" if value is None else str(value)
    if isinstance(value, bool):
        shown = "on" if value else "off"
    if name in ("groups", "rounds", "clients"):
        return f"{shown} {name.removesuffix('s') if value == 1 else name}"
    return f"{name} {shown}"


def setting_of(run: Run, swept: Sequence[str] = ()) -> dict[str, Any]:
    """Return what must be equal for two runs to be comparable."""
    flat = _flat(run.config)
    return {
        key: value
        for key, value in flat.items()
        if _below(key, swept)
        or (_below(key, ("data", "train.rounds")) and not _below(key, NOT_THE_DATA))
    }


def _flat(config: Mapping[str, Any], without: Iterable[str] = ()) -> dict[str, Any]:
    """Return a config by dotted keys; null is the same as absent, so older files compare."""
    found: dict[str, Any] = {}

    def walk(at: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, below in value.items():
                walk(f"{at}.{key}" if at else str(key), below)
        elif value is not None and not _below(at, tuple(without)):
            found[at] = value

    walk("", config)
    return found


def _below(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _key(flat: Mapping[str, Any], without: Sequence[str]) -> str:
    kept = {k: v for k, v in flat.items() if not _below(k, without)}
    return json.dumps(kept, sort_keys=True, default=str)

"""Names for runs side by side: seeds of one config are a series; those of one setting compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysim.report.records import Run

NO_MATTER = ("name", "seed", "imports", "output", "runtime", "checkpoint", "track", "arrays")
"""Sections of a config that two seeds of one series may differ in."""
NOT_THE_DATA = ("data.root", "data.features", "data.correction_features")
"""Keys below ``data`` that say how a method looks at the data, not which data there are."""
TELLING = ("data.dataset", "data.partition", "data.noise", "train.rounds", "data", "method")
"""Keys whose differences name a series, best first; then any other."""


def name_runs(runs: Sequence[Run], swept: Sequence[str] = ()) -> tuple[list[Run], list[str]]:
    """Return the runs with their names, by series and seed, and what speaks against comparing them.

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
    telling = telling_keys(settings)
    names = [words(one, telling) or found[0][0].dataset or "data" for one in settings]
    methods = _methods([group[0] for group in found], settings, (*NO_MATTER, *swept))
    several = len(set(names)) > 1
    named = []
    for group, method, setting in zip(found, methods, names, strict=True):
        ending = f" ({setting})" if several else ""
        for run in group:
            label = f"{method}, seed {run.seed}{ending}"
            series = f"{method}{ending}"
            named.append(replace(run, label=label, short=method, setting=setting, series=series))
    if len({_key(setting, swept) for setting in settings}) > 1:
        counts = {name: names.count(name) for name in names}
        listed = "; ".join(f"{name} ({count})" for name, count in counts.items())
        problems.append(
            f"The runs have {len(counts)} settings, which are not compared with each other: "
            f"{listed}."
        )
    return named, problems


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


def _methods(
    runs: Sequence[Run], settings: Sequence[Mapping[str, Any]], without: Sequence[str]
) -> list[str]:
    """Return a short name for each run that no other of its setting has."""
    flats = [_flat(run.config, without) for run in runs]
    keys = [run.method + _key(setting, ()) for run, setting in zip(runs, settings, strict=True)]
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for key, flat in zip(keys, flats, strict=True):
        alike.setdefault(key, []).append(flat)
    telling = {key: telling_keys(same) for key, same in alike.items()}
    names = []
    for run, key, flat in zip(runs, keys, flats, strict=True):
        differs = words(flat, telling[key])
        names.append(f"{run.method}, {differs}" if differs else run.method)
    return names


def telling_keys(every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return about the fewest keys whose values tell flat configs apart."""

    def rank(key: str) -> tuple[int, str]:
        return next((i for i, p in enumerate(TELLING) if _below(key, (p,))), len(TELLING)), key

    chosen: list[str] = []
    parts, wanted = 1, len({_key(one, ()) for one in every})
    for key in sorted({key for one in every for key in one}, key=rank):
        if parts == wanted:
            break
        told = len({_key({k: one.get(k) for k in (*chosen, key)}, ()) for one in every})
        if told > parts:
            chosen.append(key)
            parts = told
    return chosen


def words(flat: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return the values of a flat config at some keys as people say them."""
    return ", ".join(_word(key, flat.get(key)) for key in keys)


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


def setting_of(run: Run, swept: Sequence[str] = (), *, without: str = "") -> dict[str, Any]:
    """Return what must be equal for two runs to be comparable; ``without`` is left out."""
    return {
        key: value
        for key, value in _flat(run.config, (without,)).items()
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

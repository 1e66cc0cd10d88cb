"""Which runs a comparison is made of; everything that can be refused is, before one starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from raysim.config import (
    FREE_TO_CHANGE,
    RunConfig,
    changed_keys,
    dump_config,
    load_config,
    load_saved,
)
from raysim.errors import ConfigError, DataError, OutputError
from raysim.experiment import Experiment
from raysim.runs.folder import RunFolder
from raysim.settings import did_you_mean
from raysim.studies.processes import listed_seeds

SHARED = ("data", "model", "seed", "name", "output", "imports")
"""Sections that all methods of a comparison have in common."""
OWN = ("data.features", "data.correction_features")
"""How a method looks at the data; below ``data``, but not the data."""


@dataclass(frozen=True)
class Entry:
    """One method of a comparison."""

    label: str
    method: str
    overrides: tuple[str, ...] = ()
    """Settings that the others do not have."""


@dataclass(frozen=True)
class Run:
    """One (method, seed)."""

    label: str
    config: RunConfig

    @property
    def title(self) -> str:
        return f"{self.label} seed {self.config.seed}"

    @cached_property
    def folder(self) -> RunFolder:
        return RunFolder(self.config.run_dir())

    def job(self, *, local: bool, force: bool) -> dict[str, Any]:
        """Return what the worker is told; ``local``: all clients in its process."""
        config = dump_config(self.config)
        if local:
            config["runtime"]["kind"] = "local"
        resume = self.folder.is_started and not force
        return {"config": config, "resume": resume, "force": force}


def parse_entries(methods: str, settings: Sequence[tuple[str, str]]) -> tuple[Entry, ...]:
    """Return the methods of ``a,label:b,...``; ``settings`` are pairs of label and KEY=VALUE."""
    entries: dict[str, Entry] = {}
    for part in (piece.strip() for piece in methods.split(",")):
        label, _, method = part.rpartition(":")
        label = label or method
        if not method or not all(c.isalnum() or c in "._-" for c in label):
            raise ConfigError(
                f"--methods must be names of methods, or LABEL:METHOD, got {part!r} in "
                f"{methods!r}; write for example fb_nll,single"
            )
        if label in entries:
            raise ConfigError(
                f"--methods names {label!r} twice; give one of them a label, like second:{method}"
            )
        entries[label] = Entry(label, method)
    for label, override in settings:
        if label not in entries:
            hint = did_you_mean(label, list(entries))
            raise ConfigError(
                f"--with {label!r} is none of the methods{hint}; one of: {', '.join(entries)}"
            )
        key = override.partition("=")[0].strip()
        is_own = any(f"{key}.".startswith(f"{own}.") for own in OWN)
        if key.split(".")[0] in SHARED and not is_own:
            raise ConfigError(
                f"--with {label} {override}: all methods of a comparison have the same "
                f"{', '.join(SHARED)}; give it for all, without --with"
            )
        if key in ("method", "method.name"):
            raise ConfigError(
                f"--with {label} {override}: --methods names the methods; change it there"
            )
        entry = entries[label]
        entries[label] = replace(entry, overrides=(*entry.overrides, override))
    return tuple(entries.values())


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """Return the seeds of ``0-4`` or ``0,2,5``; None: the config's own."""
    if text is None:
        return None
    if text.strip().isdecimal() and int(text) > 0:
        last = int(text) - 1
        raise ConfigError(
            f"--seeds {text} may mean one seed or {text} of them; write 0-{last} for {text} seeds, "
            f"or {text}-{text} for seed {text} alone"
        )
    seeds = listed_seeds(text)
    if seeds is None:
        raise ConfigError(f"--seeds must be like 0-4 or 0,2,5; got {text!r}")
    return seeds


def plan(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    entries: Sequence[Entry],
    *,
    seeds: Sequence[int] | None,
    imports: Sequence[str] = (),
) -> list[Run]:
    """Return all runs, the first seed of every method first."""
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key in ("method", "method.name"):
            raise ConfigError(f"{key} is what --methods decides; leave it out")
        if key == "seed" and seeds is not None:
            raise ConfigError("seed and --seeds contradict each other; give one of them")
    configs: dict[str, RunConfig] = {}
    wrong: dict[str, ConfigError] = {}
    for entry in entries:
        both = [f"method.name={entry.method}", *overrides, *entry.overrides]
        try:
            config = load_config(source, both, imports=imports)
            output = config.output.replace("{method}", entry.label)
            configs[entry.label] = replace(config, output=output)
        except ConfigError as error:
            wrong[entry.label] = error
    if wrong:
        raise _told(wrong, len(entries), overrides)
    runs = [
        Run(label, replace(config, seed=seed).resolved())
        for seed in (seeds if seeds is not None else [next(iter(configs.values())).seed])
        for label, config in configs.items()
    ]
    seen: dict[str, Run] = {}
    for run in runs:
        other = seen.setdefault(str(run.config.run_dir()), run)
        if other is not run:
            raise ConfigError(
                f"output gives {run.config.run_dir()} to {other.title} and to {run.title}; use "
                "{method} and {seed} in it"
            )
    return runs


def _told(wrong: dict[str, ConfigError], count: int, overrides: Sequence[str]) -> ConfigError:
    """Return one error: with the method's name, unless all methods have the same."""
    label, error = next(iter(wrong.items()))
    if len(wrong) == count > 1 and len({str(w) for w in wrong.values()}) == 1:
        return error
    has_own = any(override.startswith("method.") for override in overrides)
    do = "; give a setting of one method by --with LABEL KEY=VALUE" if has_own else ""
    return ConfigError(f"--methods {label}: {error}{do}")


def unfinished(runs: Sequence[Run], *, resume: bool, force: bool) -> list[Run]:
    """Return the runs that are still to do; refuse directories that hold something else."""
    started = [run for run in runs if run.folder.is_started]
    if started and not (resume or force):
        raise OutputError(
            f"{len(started)} of {len(runs)} run directories hold runs already, the first is "
            f"{started[0].folder.path}; use --resume to keep what is finished and go on with the "
            "rest, or --force to run all again"
        )
    for run in runs:
        goes_on = resume and run in started
        run.folder.check(resume=goes_on, force=force)
        if goes_on:
            _check_same(run)
    return [run for run in runs if force or not run.folder.is_finished]


def _check_same(run: Run) -> None:
    saved = load_saved(run.folder.saved_config(), f"{run.folder.path}/config.yaml")
    # What was imported besides does not touch a run that is finished: a method may join later.
    free = (*FREE_TO_CHANGE, "imports") if run.folder.is_finished else FREE_TO_CHANGE
    changed = changed_keys(run.config, saved, ignore=free)
    if changed:
        keys = ", ".join(f"{key} (now {new!r}, was {old!r})" for key, new, old in changed)
        raise ConfigError(
            f"--resume: {keys} differ from the config of {run.folder.path}; use the same "
            "settings, another name, or --force to run all again"
        )


def check_fit(runs: Sequence[Run]) -> None:
    """Load the data once per method and refuse a method that does not fit it."""
    first: dict[str, RunConfig] = {}
    for run in runs:
        first.setdefault(run.label, run.config)
    for label, config in first.items():
        try:
            Experiment(config).prepare()
        except (ConfigError, DataError) as wrong:
            kind = DataError if isinstance(wrong, DataError) else ConfigError
            raise kind(f"--methods {label}: {wrong}") from wrong

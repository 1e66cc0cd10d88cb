"""Which runs a table still needs, and what each process is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysim.config import RunConfig, choice_name
from raysim.errors import ConfigError, DataError, OutputError
from raysim.methods.method import uses_of
from raysim.studies.reproduce.costs import run_minutes
from raysim.studies.reproduce.recipes import (
    Scale,
    config_digest,
    differences,
    paper_deviations,
    public_config,
    reduced_settings,
    run_config,
    with_weights_at_hand,
)
from raysim.studies.reproduce.results import read_result, result_path
from raysim.studies.reproduce.tables import Cell, Target

GROUPED = ("rcc_pfl", "fb_nll_minus")
"""Methods that differ from optimum in the groups alone."""


@dataclass(frozen=True)
class Run:
    """One (cell, seed)."""

    target: Target
    cell: Cell
    seed: int
    scale: Scale
    job: Mapping[str, Any]
    """What the worker is told."""
    minutes: float
    """Estimated cost."""

    @property
    def title(self) -> str:
        return f"{self.cell.address} seed {self.seed}"


@dataclass(frozen=True)
class Failure:
    """A run without a result, and why."""

    cell: str
    seed: int
    error: str


def plan(
    target: Target,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    *,
    scale: Scale,
    out: Path,
    force: bool = False,
) -> tuple[list[Run], list[Failure]]:
    """Return the runs that ``out`` does not hold, first seeds and cheapest cells first.

    A result that was made with another config is refused. A cell whose config cannot be built
    (a method that is not installed) is returned as a failure.
    """
    runs, failures = [], []
    for seed in seeds:
        for cell in cells:
            try:
                run = _run(target, cell, seed, scale, out, force)
            except ConfigError as wrong:
                failures.append(Failure(cell.address, seed, str(wrong)))
                continue
            if run is not None:
                runs.append(run)
    first = {seed: i for i, seed in enumerate(seeds)}
    return sorted(runs, key=lambda run: (first[run.seed], run.minutes)), failures


def _run(target: Target, cell: Cell, seed: int, scale: Scale, out: Path, force: bool) -> Run | None:
    """Return the run, or None where its result is there already."""
    goal = result_path(out, target, scale, cell.address, seed)
    config, details = _details(target, cell, seed, scale)
    if goal.exists() and not force:
        _check_same(goal, config, details["config"])
        return None
    head = {
        "name": target.name,
        "cell": cell.address,
        "seed": seed,
        "scale": goal.relative_to(out / target.name).parts[0],
        "published": _published(target, cell),
        "reduced": reduced_settings(target, cell, scale),
        "deviations": details["deviations"],
    }
    kind = target.kind if config is None else "training"
    job = {"kind": kind, "head": head, "goal": str(goal.resolve()), "force": force, **details}
    if config is not None:
        # the same run of another table has the same folder
        slug = f"{cell.address.replace('/', '-')}-seed{seed}-{config_digest(config)[:10]}"
        job["run_dir"] = str((out / "runs" / slug).resolve())
        job["optimum"] = _optimum(target, cell, seed, scale, out)
    else:
        head["config"] = details["config"]
    return Run(target, cell, seed, scale, job, run_minutes(target, cell, scale))


def _published(target: Target, cell: Cell) -> dict[str, Any] | None:
    """Return the printed mean and sd of a cell, or its several values by name."""
    printed = target.printed
    if not target.trains:
        return {name: value.mean for name, value in printed.items()} or None
    if len(target.compares) > 1:
        own = {v: printed.get(f"{cell.address} {v}") for v in target.compares}
        return {name: value.mean for name, value in own.items() if value is not None} or None
    return asdict(printed[cell.address]) if cell.address in printed else None


def _details(
    target: Target, cell: Cell, seed: int, scale: Scale
) -> tuple[RunConfig | None, dict[str, Any]]:
    """Return the config of a training run, and the plain values that a job carries."""
    if target.kind == "similarity":
        from raysim.studies.reproduce.similarity import SETTINGS

        return None, {"config": SETTINGS[target.name], "deviations": []}
    if target.kind == "costs":
        from raysim.studies.reproduce.passes import SETTING

        return None, {"config": SETTING, "deviations": []}
    config = run_config(target, cell, seed=seed, scale=scale)
    config, missing = with_weights_at_hand(target, cell, config)
    deviations = [*paper_deviations(target, cell, scale), *missing]
    return config, {"config": public_config(config), "deviations": deviations}


def _check_same(goal: Path, config: RunConfig | None, plain: Mapping[str, Any]) -> None:
    """Refuse a result of another config; two settings must never share a table."""
    stored = read_result(goal)["config"]
    if config is not None:
        changes = differences(config, stored)
    else:
        keys = sorted(plain.keys() | stored.keys())
        changes = [
            f"{key} (now {plain.get(key)!r}, was {stored.get(key)!r})"
            for key in keys
            if plain.get(key) != stored.get(key)
        ]
    if changes:
        raise OutputError(
            f"{goal} was made with another config: {', '.join(changes)}; use another --out, or "
            "--force to run the selected cells again"
        )


def _optimum(
    target: Target, cell: Cell, seed: int, scale: Scale, out: Path
) -> dict[str, Any] | None:
    """Return where the result of optimum is, for a method that may equal it."""
    if cell.method not in GROUPED or "optimum" not in target.methods:
        return None
    given = Cell(cell.dataset, cell.groups, "optimum")
    path = result_path(out, target, scale, given.address, seed)
    config = run_config(target, given, seed=seed, scale=scale)
    return {"path": str(path.resolve()), "config": public_config(config)}


def check_data(runs: Iterable[Run]) -> None:
    """Find or fetch what the runs read, so that a missing file is told before anything starts."""
    seen: set[str] = set()
    for run in runs:
        for what, check in _needs(run):
            if what not in seen:
                seen.add(what)
                try:
                    check()
                except DataError as wrong:
                    raise DataError(f"{run.target.name} needs {what}: {wrong}") from wrong


def _needs(run: Run) -> list[tuple[str, Any]]:
    """Return (name, function that finds it) of the data sets and networks of a run."""
    from raysim.config import load_config

    if run.target.kind == "costs":
        return []  # digits
    if run.target.kind == "similarity":
        from raysim.studies.reproduce.similarity import datasets_of

        sets = datasets_of(run.target.name)
        return [(f"dataset {d.choice_name}", lambda d=d: d.ensure(None)) for d in sets]
    config = load_config(run.job["config"])
    dataset, extractors = config.data.dataset, map(config.data.extractor, uses_of(config))
    return [
        (f"dataset {choice_name(dataset)}", lambda: dataset.ensure(None)),
        *((f"features {choice_name(e)}", e.check_available) for e in extractors),
    ]

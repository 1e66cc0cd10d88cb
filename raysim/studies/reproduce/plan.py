"""Which runs a table still needs, and what each of them is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raysim.config import RunConfig, choice_name, load_config
from raysim.errors import ConfigError, DataError, OutputError
from raysim.methods.method import uses_of
from raysim.studies.reproduce.configs import (
    config_digest,
    differences,
    paper_deviations,
    public_config,
    reduced_settings,
    run_config,
    with_weights_at_hand,
)
from raysim.studies.reproduce.measure import MEASURED
from raysim.studies.reproduce.papers import Scale, Table, TableCell
from raysim.studies.reproduce.results import read_result, result_path
from raysim.studies.study import Cell, Outcome


def plan(
    table: Table,
    cells: Sequence[TableCell],
    seeds: Sequence[int],
    *,
    scale: Scale,
    out: Path,
    force: bool = False,
) -> tuple[list[Cell], list[Outcome]]:
    """Return the runs that ``out`` does not hold, first seeds and cheapest cells first.

    A result that was made with another config is refused. A cell whose config cannot be built
    (a method that is not installed) is returned as a failure.
    """
    runs: list[Cell] = []
    failures: list[Outcome] = []
    for seed in seeds:
        of_seed = []
        for cell in cells:
            label = {"cell": cell.address, "seed": str(seed)}
            try:
                run = _run(label, table, cell, seed, scale, out, force=force)
            except ConfigError as wrong:
                failures.append(Outcome(Cell(label, None), str(wrong)))
                continue
            of_seed += [run] if run is not None else []
        runs += sorted(of_seed, key=lambda run: run.minutes)
    return runs, failures


def _run(
    label: Mapping[str, str],
    table: Table,
    cell: TableCell,
    seed: int,
    scale: Scale,
    out: Path,
    *,
    force: bool,
) -> Cell | None:
    """Return the run, or None where its result is there already."""
    goal = result_path(out, table, scale, cell.address, seed)
    config, deviations = _config(table, cell, seed, scale)
    plain = MEASURED[table.kind].SETTINGS[table.name] if config is None else public_config(config)
    if goal.exists() and not force:
        _check_same(goal, config, plain)
        return None
    printed = table.published(cell)
    alone = [asdict(number) for name, number in printed.items() if table.trains and not name]
    head = {
        "name": table.name,
        "cell": cell.address,
        "seed": seed,
        "scale": goal.relative_to(out / table.name).parts[0],
        "published": alone[0] if alone else {n: p.mean for n, p in printed.items()} or None,
        "reduced": reduced_settings(table, cell, scale),
        "deviations": deviations,
    }
    more = {"kind": table.kind, "head": head, "goal": str(goal.resolve()), "optimum": None}
    optimum = None
    if config is None:
        head["config"] = plain
    else:
        # the same run of another table has the same folder
        slug = f"{cell.address.replace('/', '-')}-seed{seed}-{config_digest(config)[:10]}"
        folder = str((out / "runs" / slug).resolve()).replace("{", "{{").replace("}", "}}")
        config = load_config(plain, ["runtime.kind=local", f"output={json.dumps(folder)}"])
        same = table.paper.reuse.get(cell.row)
        if same in table.rows:
            other = TableCell(cell.dataset, cell.column, str(same))
            expected, _ = _config(table, other, seed, scale)
            assert expected is not None
            optimum = result_path(out, table, scale, other.address, seed).resolve()
            more["optimum"] = {"path": str(optimum), "config": public_config(expected)}
    return Cell(
        label,
        config,
        work="raysim.studies.reproduce.measure:measure",
        more=more,
        goal=goal.resolve(),
        after=optimum,
        minutes=table.minutes(cell, scale),
    )


def _config(
    table: Table, cell: TableCell, seed: int, scale: Scale
) -> tuple[RunConfig | None, list[str]]:
    """Return the config of a training run, and where it deviates from the paper's."""
    if not table.trains:
        return None, []
    config = run_config(table, cell, seed=seed, scale=scale)
    config, missing = with_weights_at_hand(table, cell, config)
    return config, [*paper_deviations(table, cell, scale), *missing]


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


def check_data(table: Table, runs: Sequence[Cell]) -> None:
    """Find or fetch what the runs read, so that a missing file is told before anything starts."""
    seen: set[str] = set()
    for run in runs:
        for what, check in _needs(table, run.config):
            if what not in seen:
                seen.add(what)
                try:
                    check()
                except DataError as wrong:
                    raise DataError(f"{table.name} needs {what}: {wrong}") from wrong


def _needs(table: Table, config: RunConfig | None) -> list[tuple[str, Callable[[], Any]]]:
    """Return (name, function that finds it) of the data sets and networks of a run."""
    if config is None:
        sets, extractors = MEASURED[table.kind].datasets_of(table.name), []
    else:
        sets = [config.data.dataset]
        extractors = [config.data.extractor(use) for use in uses_of(config)]
    return [
        *((f"dataset {choice_name(d)}", lambda d=d: d.ensure(None)) for d in sets),
        *((f"features {choice_name(e)}", e.check_available) for e in extractors),
    ]

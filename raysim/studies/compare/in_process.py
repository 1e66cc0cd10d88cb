"""A comparison from Python, one run after another in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.config import RunConfig, dump_config
from raysim.experiment import Experiment
from raysim.runs.results import Results, load_result
from raysim.studies.compare.plan import check_fit, parse_entries, plan, unfinished


def compare(
    config: str | Path | Mapping[str, Any] | RunConfig,
    methods: Sequence[str],
    *overrides: str,
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Sequence[str]] | None = None,
    imports: Sequence[str] = (),
    resume: bool = False,
    force: bool = False,
) -> Results:
    """Run the config with each method and seed; with one seed all get the same data and weights.

    A method is a name or ``label:name``; ``settings`` are ``key=value`` overrides by label. What
    cannot work is refused before the first run. ``raysim compare`` does the same in parallel.
    """
    source = dump_config(config) if isinstance(config, RunConfig) else config
    own = [(label, one) for label, many in (settings or {}).items() for one in many]
    entries = parse_entries(",".join(methods), own)
    runs = plan(source, overrides, entries, seeds=seeds, imports=imports)
    todo = unfinished(runs, resume=resume, force=force)
    check_fit(todo)
    for run in todo:
        Experiment(run.config).run(resume=run.folder.is_started and not force, force=force)
    return Results(load_result(run.folder.root) for run in runs)

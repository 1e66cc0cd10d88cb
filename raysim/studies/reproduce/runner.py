"""Runs the cells of a table that are not there yet, as many at once as the machine allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysim.studies.reproduce.plan import Failure, Run
from raysim.studies.study import Cell, Say, default_backend, run_study


def execute(
    runs: Sequence[Run], *, jobs: int | None, say: Say, force: bool = False
) -> list[Failure]:
    """Run everything and return what failed; ``Interrupted`` after Ctrl-C or SIGTERM."""
    cells = {run.title: (run, _cell(run)) for run in runs}
    outcomes = run_study(
        [cell for _, cell in cells.values()],
        backend=default_backend(None, jobs),
        say=say,
        errors=Path(),
        force=force,
    )
    failed = [(cells[o.cell.title][0], o.error) for o in outcomes if o.error]
    return [Failure(run.cell.address, run.seed, error) for run, error in failed]


def _cell(run: Run) -> Cell:
    optimum = run.job.get("optimum")  # a run that may reuse its training waits for it
    return Cell(
        {"cell": run.cell.address, "seed": str(run.seed)},
        None,
        work="raysim.studies.reproduce.worker:write",
        more=run.job,
        goal=Path(run.job["goal"]),
        after=Path(optimum["path"]) if optimum else None,
    )

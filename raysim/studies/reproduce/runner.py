"""Runs the cells of a table that are not there yet, as many at once as the machine allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.studies import processes
from raysim.studies.processes import Job, Say
from raysim.studies.reproduce.plan import Failure, Run
from raysim.studies.reproduce.results import read_result


def execute(runs: Sequence[Run], *, jobs: int, say: Say) -> list[Failure]:
    """Run everything and return what failed; ``Interrupted`` after Ctrl-C or SIGTERM."""
    by_goal = {run.job["goal"]: run for run in runs}

    def forget(job: Job) -> None:
        """Remove a result that is made again: stopped half-way, it must not count as finished."""
        if job.told["force"]:
            Path(job.goal).unlink(missing_ok=True)

    failed = processes.execute(
        [
            Job(
                title=run.title,
                told=run.job,
                log=Path(goal).with_suffix(".error.txt"),
                goal=goal,
                # a run that may reuse optimum's training waits for it
                after=(run.job.get("optimum") or {}).get("path"),
            )
            for goal, run in by_goal.items()
        ],
        worker="raysim.studies.reproduce.worker",
        at_once=jobs,
        say=say,
        score=_score,
        before=forget,
    )
    return [Failure(by_goal[j.goal].cell.address, by_goal[j.goal].seed, e) for j, e in failed]


def _score(job: Job, last: Mapping[str, Any]) -> tuple[str, str]:
    result = read_result(Path(job.goal))
    remark = ", optimum's training reused" if last.get("reused") else ""
    if "accuracy_percent" in result:
        return f"{result['accuracy_percent']:.2f} %", remark
    return f"{len(result['values'])} values", remark

"""``raysim status``: the jobs of a cluster, or one of them."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.submit import ADDRESS_HELP, follow_job
from raysim.cli.tables import print_table
from raysim.errors import ConfigError, DataError, EnvironmentNotFit
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.runtime.ray.jobs import Job, Jobs

MOST = 20
LINES = 15
WIDEST = 60
"""Most characters of a log's line in the list."""
PROGRESS = re.compile(r"\S+ \d+/\d+  ")
"""How the line of a round begins."""


@click.command("status")
@click.argument("job", required=False)
@click.option("--address", metavar="URL", help=ADDRESS_HELP)
@click.option("--follow", is_flag=True, help="Show JOB's log; leave with its exit code.")
@click.option("--stop", is_flag=True, help="End JOB after its round; --resume can go on with it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last line.")
def command(job: str | None, address: str | None, follow: bool, stop: bool, as_json: bool) -> None:
    """Show the runs submitted to a Ray cluster, or JOB with the end of its log."""
    if job is None and (follow or stop):
        raise ConfigError("--follow and --stop need a job; `raysim status` lists them")

    from raysim.runtime.ray.jobs import Jobs

    jobs = Jobs(address)
    if job is None:
        _show_all(jobs, as_json=as_json)
        return
    jobs.get(job)
    if stop:
        says = "was asked to stop; it ends after its round, with a checkpoint"
        says = says if jobs.stop(job) else "had ended already"
        if not as_json:
            click.echo(f"{job} {says}")
    code = follow_job(jobs, job, sys.stderr if as_json else sys.stdout) if follow else 0
    if as_json or not (follow or stop):
        _show_one(jobs, jobs.get(job), as_json=as_json)
    raise click.exceptions.Exit(code)


def _show_all(jobs: Jobs, *, as_json: bool) -> None:
    from raysim.runtime.ray.jobs import RUN

    found = [job for job in jobs.all() if job.kind == RUN]
    rows = []
    for job in found[:MOST]:
        try:
            log = jobs.log(job.id)
        except (DataError, EnvironmentNotFit):  # as on a node that is gone
            log = None
        rows.append(_facts(job, log))
    if as_json:
        click.echo(json_text({"address": jobs.address, "jobs": rows, "count": len(found)}))
        return
    if not rows:
        click.echo(f"no runs on the cluster at {jobs.address}; `raysim submit` starts one")
        return
    keys = ("job", "status", "exit_code", "started", "run_dir", "progress")
    for row in rows:
        row["progress"] = row["progress"] and row["progress"][:WIDEST]
    texts = [["-" if row[k] is None else str(row[k]) for k in keys] for row in rows]
    header = ("job", "status", "exit", "started", "run directory", "last line")
    print_table(header, texts, left=len(header))
    if len(found) > MOST:
        click.echo(f"and {len(found) - MOST} older ones")


def _show_one(jobs: Jobs, job: Job, *, as_json: bool) -> None:
    log = jobs.log(job.id)
    facts = _facts(job, log)
    lines = log.splitlines()[-LINES:]
    if as_json:
        click.echo(json_text({**facts, "log": lines}))
        return
    known = [(name, str(value)) for name, value in facts.items() if value not in (None, "")]
    print_table((), known, left=2, wrap=True)
    click.echo("\n".join(["", *lines]))


def _facts(job: Job, log: str | None) -> dict[str, Any]:
    when = datetime.fromtimestamp(job.started) if job.started else None
    return {
        "job": job.id,
        "status": job.status,
        "exit_code": job.exit_code,
        "started": when.isoformat(sep=" ", timespec="seconds") if when else None,
        "run_dir": job.run_dir,
        "raysim": job.version,
        "progress": None if log is None else last_progress(log),
        "message": job.message.strip().splitlines()[0] if job.message.strip() else "",
    }


def last_progress(log: str) -> str:
    """Return the last line of a round, or the last line at all."""
    lines = [line for line in log.splitlines() if line.strip()]
    rounds = [line for line in lines if PROGRESS.match(line)]
    return (rounds or lines or [""])[-1].strip()

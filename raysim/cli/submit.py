"""``raysim submit``: a run as a job of a Ray cluster."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from raysim.cli.options import Resumable, check_resume, import_option, resume_option
from raysim.errors import ConfigError
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.runtime.ray.jobs import Jobs

ADDRESS_HELP = (
    "URL of the cluster's dashboard; default: $RAY_API_SERVER_ADDRESS, $RAY_ADDRESS, "
    "http://127.0.0.1:8265."
)
RETRY_AFTER_S = 10.0
"""Pause before another attempt, times the attempts so far."""
NO_CURE = (0, 2, 130)
"""Exit codes after which another attempt is no use: done, wrong config, stopped."""


@click.command("submit", cls=Resumable)
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@import_option
@click.option("--address", metavar="URL", help=ADDRESS_HELP)
@click.option(
    "--storage",
    metavar="PATH|URL",
    help="Folder that every node reaches; the config's output goes below it.",
)
@click.option("--follow", is_flag=True, help="Show the job's log; leave with its exit code.")
@resume_option
@click.option("--force", is_flag=True, help="Replace what is in the run directory.")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    help="Follow the job and submit it again with --resume=auto, up to so often, when it failed.",
)
@click.option(
    "--driver-cpus",
    type=click.FloatRange(min=0),
    help="CPUs kept for the coordinator; above 0 it runs on a node that has them.",
)
@click.option(
    "--driver-memory",
    type=click.FloatRange(min=0),
    metavar="GB",
    help="Memory kept for the coordinator.",
)
@click.option("--name", metavar="NAME", help="First part of the job's id; default: config's name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last line.")
def command(
    config: str,
    overrides: tuple[str, ...],
    imports: tuple[str, ...],
    address: str | None,
    storage: str | None,
    follow: bool,
    resume: bool | Literal["auto"],
    force: bool,
    retries: int,
    driver_cpus: float | None,
    driver_memory: float | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Run CONFIG (a YAML file or a bundled name) on a Ray cluster.

    This raysim, the config and its imports are sent along; datasets and installed packages are
    not, the nodes fetch them or have them.
    The job goes on when this command is interrupted (exit code 130) or the machine goes away.

    \b
    raysim submit quickstart --storage /mnt/shared --follow
    raysim submit mine.yaml --storage s3://bucket/runs --retries 3 --driver-memory 16
    raysim submit mine.yaml seed=1 --address http://127.0.0.1:8265 --storage s3://bucket/runs
    """  # noqa: D301 -- click reads the real \b character
    from raysim.config import config_yaml, load_config
    from raysim.config.plugins import module_files

    check_resume(resume, force)
    if force and retries:
        raise ConfigError(
            "--force and --retries contradict each other: another attempt goes on with what is "
            "there, which may be what --force is to replace; give one of them"
        )
    settings = for_cluster(load_config(config, overrides, imports=imports), storage)
    run_dir = str(settings.run_dir())

    from raysim.runtime.ray.jobs import RUN, Jobs, new_job_id

    jobs = Jobs(address)
    files: dict[str, str | bytes] = {**module_files(settings.imports)}
    files["config.yaml"] = config_yaml(settings)
    flags = ["--resume=auto" if resume == "auto" else "--resume"] if resume else []
    flags += ["--force"] if force else []
    stream = sys.stderr if as_json else sys.stdout
    for attempt in range(1, retries + 2):
        job_id = new_job_id(name or settings.name)
        facts: dict[str, Any] = {"job": job_id, "run_dir": run_dir, "address": jobs.address}
        jobs.submit(
            " ".join(["python -m raysim run config.yaml", *flags]),
            files,
            job_id=job_id,
            kind=RUN,
            run_dir=run_dir,
            driver_cpus=driver_cpus,
            driver_memory_gb=driver_memory,
        )
        number = f"  attempt {attempt} of {retries + 1}" if retries else ""
        told = f"job            {job_id}{number}\nrun directory  {run_dir}"
        print(told, file=stream, flush=True)
        code = 0
        if follow or retries:
            code = follow_job(jobs, job_id, stream)
            facts |= {"exit_code": code, "attempts": attempt}
        if code in NO_CURE or attempt > retries:
            break
        pause_s = RETRY_AFTER_S * attempt
        again = f"raysim: submitting it again in {pause_s:g} s, to go on from its last checkpoint"
        click.echo(again, err=True)
        time.sleep(pause_s)
        flags = ["--resume=auto"]
    if as_json:
        click.echo(json_text(facts))
    elif not (follow or retries):
        click.echo(f"look           raysim status {job_id} --follow --address {jobs.address}")
        click.echo(f"bring home     raysim fetch {job_id} --address {jobs.address}")
    raise click.exceptions.Exit(code)


def for_cluster(config: RunConfig, storage: str | None) -> RunConfig:
    """Return the config as the job runs it: on the cluster it is in, below ``storage``."""
    from dataclasses import replace

    runtime = replace(config.runtime, kind="ray", address="auto")
    return replace(config, runtime=runtime, output=_output(config.output, storage))


def _output(output: str, storage: str | None) -> str:
    from raysim.storage.objects import refuse_secrets

    if storage is None:
        if not _is_absolute(output):
            raise ConfigError(
                f"output {output!r} is relative, and a job has no folder of yours; give --storage "
                "with a path or URL that every node reaches, or make output absolute"
            )
        return output
    refuse_secrets(storage, "--storage")  # before anything repeats it
    if not _is_absolute(storage):
        raise ConfigError(
            f"--storage must be an absolute path or a URL like s3://bucket/runs, got {storage!r}"
        )
    if _is_absolute(output) or output.startswith("~") or ".." in output.split("/"):
        raise ConfigError(
            f"output {output!r} does not lie below --storage {storage!r}; give a relative output, "
            "or leave --storage out"
        )
    return f"{storage.rstrip('/')}/{output}"


def _is_absolute(path: str) -> bool:
    """Whether a path means the same on every node."""
    return "://" in path or path.startswith("/")


def follow_job(jobs: Jobs, job_id: str, stream: TextIO) -> int:
    """Show a job's log until it ends and return its exit code; Ctrl-C only looks away."""
    try:
        for text in jobs.follow(job_id):
            stream.write(text)
            stream.flush()
        job = jobs.wait(job_id)
    except KeyboardInterrupt:
        click.echo(
            f"\nraysim: the job goes on; `raysim status {job_id} --follow` looks again, "
            f"`raysim status {job_id} --stop` ends it after its round",
            err=True,
        )
        return 130
    code = job.exit_code if job.exit_code is not None else 1
    if code:
        first = job.message.strip().splitlines()[:1]
        says = first[0] if first else "no message"
        click.echo(f"raysim: job {job_id} {job.status}, exit code {code}: {says}", err=True)
    return code

"""``raysim fetch``: a run directory brought home."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raysim.cli.options import trust_option
from raysim.cli.submit import ADDRESS_HELP
from raysim.cli.tables import print_result
from raysim.errors import CheckpointError, ConfigError, DataError, EnvironmentNotFit
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.runtime.ray.jobs import Jobs


@click.command("fetch")
@click.argument("run")
@trust_option
@click.option("--address", metavar="URL", help=ADDRESS_HELP)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="New run directory; default: runs/{name}/{method}/seed{seed}.",
)
@click.option("--models", is_flag=True, help="With models/ and checkpoint/: also clients' memory.")
@click.option("--force", is_flag=True, help="Replace a run directory that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    run: str, address: str | None, to: Path | None, models: bool, force: bool, as_json: bool
) -> None:
    """Bring home RUN: a job, a run directory on the cluster's storage, or a URL.

    A path or URL that can be read from here is copied, and so is a job that wrote to such a URL.
    Everything else, and always a path with --address, comes through the cluster's dashboard port,
    checked by sha256.
    """
    from raysim.runs.transfer import arrive, arriving, check_destination

    if to is not None:
        check_destination(to, force=force)
    with arriving(to.absolute().parent if to is not None else Path.cwd()) as part:
        _bring(run, address, part, models=models)
        folder = to if to is not None else _usual_folder(part)
        arrive(part, folder, force=force)
    _show(folder, as_json=as_json)


def _bring(run: str, address: str | None, into: Path, *, models: bool) -> None:
    """Fill a folder with a run, complete or not at all."""
    is_url = "://" in run
    from_here = is_url or (address is None and ("/" in run or Path(run).exists()))
    if from_here and _copied(run, into, models=models):
        return

    from raysim.runtime.ray.jobs import Jobs, is_job_id

    if not (is_url or run.startswith("/") or is_job_id(run)):
        raise DataError(
            f"{run!r} is no run directory here, and not an absolute path, URL or job; "
            "`raysim status` lists jobs"
        )
    jobs = Jobs(address)
    if is_job_id(run):
        job = jobs.get(run)
        if not job.run_dir:
            raise DataError(f"job {run!r} is not a run of raysim; `raysim status` lists them")
        run = job.run_dir
        if "://" in run and _copied(run, into, models=models):
            return
    _through_cluster(jobs, run, into, models=models)


def _copied(run: str, into: Path, *, models: bool) -> bool:
    """Whether a run directory was readable from here and is now copied."""
    from raysim.runs.transfer import copy
    from raysim.storage.objects import open_storage, place

    try:
        return copy(open_storage(place(run)), into, models=models)
    except (OSError, EnvironmentNotFit) as wrong:
        if any(into.iterdir()):  # it began well and broke
            raise DataError(f"{run} could not be copied completely ({wrong}); try again") from wrong
        return False  # the cluster may have the mount or the credentials that are missing here


def _through_cluster(jobs: Jobs, run: str, into: Path, *, models: bool) -> None:
    """Have a small job send the run directory in its log."""
    from raysim.runs.transfer import REQUEST, receive, unpack
    from raysim.runtime.ray.jobs import FETCH, new_job_id

    job_id = new_job_id("fetch")
    request = {REQUEST: json.dumps({"run": run, "models": models})}
    jobs.submit("python -m raysim.runs.transfer", request, job_id=job_id, kind=FETCH, run_dir=run)
    with tempfile.TemporaryFile() as archive:
        try:
            receive(jobs.follow(job_id), archive)
        except DataError as wrong:
            job = jobs.get(job_id)
            if job.has_ended and job.exit_code and "no run directory" not in str(wrong):
                raise DataError(f"{wrong} (job {job_id}, exit code {job.exit_code})") from wrong
            raise
        except KeyboardInterrupt:
            jobs.stop(job_id)
            raise
        unpack(archive, into, models=models)


def _usual_folder(part: Path) -> Path:
    """Return where a run of this config would have put its directory on this machine."""
    from dataclasses import replace

    from raysim.config import RunConfig, load_saved
    from raysim.runs.folder import RunFolder

    try:
        config = load_saved(RunFolder(part).saved_config(), "the run's config.yaml")
    except (ConfigError, CheckpointError) as wrong:
        raise DataError(
            f"the run's config.yaml is not of this raysim ({wrong}); say where with --to"
        ) from wrong
    return Path(replace(config, output=RunConfig().output).run_dir())


def _show(folder: Path, *, as_json: bool) -> None:
    if not (folder / "result.json").is_file():
        click.echo(f"{folder}: not finished yet; what is there has been fetched", err=True)
        return
    text = (folder / "result.json").read_text(encoding="utf-8")
    summary = {**json.loads(text), "run_dir": str(folder)}
    if as_json:
        click.echo(json_text(summary))
        return
    print_result(summary)
    sys.stdout.flush()

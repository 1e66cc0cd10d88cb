"""``raysim run``: one config, one run directory, one result."""

from __future__ import annotations

import sys
from typing import Literal

import click

from raysim.cli.options import Resumable, check_resume, import_option, resume_option
from raysim.cli.tables import print_result
from raysim.storage.files import json_text


@click.command("run", cls=Resumable)
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@import_option
@resume_option
@click.option("--force", is_flag=True, help="Replace what is in the run directory.")
@click.option("--track", metavar="NAMES", help="tensorboard, mlflow, or both with a comma.")
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object, last line."
)
def command(
    config: str,
    overrides: tuple[str, ...],
    imports: tuple[str, ...],
    resume: bool | Literal["auto"],
    force: bool,
    track: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run CONFIG (a YAML file or a bundled name, see `raysim ls configs`).

    \b
    raysim run quickstart
    raysim run quickstart method.name=single train.rounds=5 seed=1
    raysim run quickstart data.noise='{kind: uniform, rho: 0.6}'
    raysim run quickstart --import my_methods method.name=my_method
    """  # noqa: D301 -- click reads the real \b character
    from raysim.cli.progress import log_to_terminal, show_progress
    from raysim.config import load_config

    check_resume(resume, force)
    if track is not None:
        overrides = (*overrides, f"track=[{track}]")
    settings = load_config(config, overrides, imports=imports)

    from raysim.experiment import Experiment

    log_to_terminal()
    experiment = Experiment(settings)
    stream = sys.stderr if as_json else sys.stdout
    with show_progress(experiment, stream=stream, quiet=quiet) as listener:
        result = experiment.run(resume=resume, force=force, listeners=[listener])
    if as_json:
        click.echo(json_text(dict(result.summary)))
    else:
        print_result(result.summary)

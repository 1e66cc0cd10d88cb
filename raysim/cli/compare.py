"""``raysim compare``: several methods on the same data, one table, one report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import import_option
from raysim.cli.tables import print_table
from raysim.errors import ConfigError, RaysimError

if TYPE_CHECKING:
    from raysim.studies.compare.plan import Run


@click.command("compare")
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--methods", required=True, metavar="A,B,...", help="Methods, or LABEL:METHOD.")
@click.option(
    "--with",
    "settings",
    type=(str, str),
    multiple=True,
    metavar="LABEL KEY=VALUE",
    help="A setting of one method alone; may be given again.",
)
@click.option("--seeds", metavar="A-B|A,B", help="Like 0-4 or 0,2,5; default: the config's seed.")
@import_option
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at once; default: one per CPU.")
@click.option("--resume", is_flag=True, help="Keep what is finished, go on with the rest.")
@click.option("--force", is_flag=True, help="Run everything again.")
@click.option("--out", metavar="FILE|FOLDER", help="The report; default runs/NAME/comparison/.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last line.")
def command(config: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Run CONFIG with each of several methods and compare them.

    With one seed all methods get the same data, partition, wrong labels and initial weights;
    differences to the first method are taken seed by seed. Every run is a process of its own and
    leaves an ordinary run directory. As many go at once as CPUs and memory allow, without Ray;
    --jobs 1 uses the config's runtime. One that fails does not stop the others; the exit code is 1.

    \b
    raysim compare quickstart --methods fb_nll,fb_nll_minus,single --seeds 0-4
    raysim compare quickstart --methods single,prox:single --with prox train.proximal=0.1
    raysim compare quickstart --import my_methods --methods my_method,fb_nll train.rounds=5
    """  # noqa: D301 -- click reads the real \b character
    if options["resume"] and options["force"]:
        raise ConfigError("--resume and --force contradict each other; give one of them")
    from raysim.report.writer import checked_output
    from raysim.storage.files import make_output_folder
    from raysim.studies.compare.plan import check_fit, parse_entries, parse_seeds, plan, unfinished

    seeds = parse_seeds(options["seeds"])
    entries = parse_entries(options["methods"], options["settings"])
    runs = plan(config, overrides, entries, seeds=seeds, imports=options["imports"])
    out = options["out"] or f"runs/{runs[0].config.name}/comparison/"
    folder = checked_output(out).folder
    todo = unfinished(runs, resume=options["resume"], force=options["force"])
    check_fit(todo)
    make_output_folder(folder)
    say = partial(print, file=sys.stderr if options["as_json"] else sys.stdout, flush=True)
    failed = _execute(runs, todo, folder / "errors", options, say) if todo else []
    _show(runs, failed, out, as_json=options["as_json"])


def _execute(
    runs: Sequence[Run], todo: Sequence[Run], errors: Path, options: Any, say: Any
) -> list[tuple[str, str]]:
    """Do the runs; return the titles and errors of those that failed."""
    from raysim.studies.processes import Job, default_jobs, execute

    runtime = todo[0].config.runtime
    elsewhere = runtime.address is not None or runtime.per_actor.gpus > 0
    jobs = options["jobs"] or (1 if elsewhere else default_jobs())
    how = (
        f"{min(jobs, len(todo))} at once, each in a process of its own (runtime.kind=local; "
        "--jobs 1 uses the config's)"
        if jobs > 1
        else f"one after another, runtime.kind={runtime.kind}"
    )
    say(f"{runs[0].config.name}: {len(todo)} of {len(runs)} runs to do, {how}")
    failed = execute(
        [
            Job(
                title=run.title,
                told=run.job(local=jobs > 1, force=options["force"]),
                log=errors / f"{run.label}-seed{run.config.seed}.txt",
                goal=run.title,
            )
            for run in todo
        ],
        worker="raysim.studies.compare.worker",
        at_once=jobs,
        say=say,
        score=lambda job, last: (f"{100 * last['accuracy']:.2f} %", ""),
        again="the same command with --resume",
    )
    return [(job.title, error) for job, error in failed]


def _show(
    runs: Sequence[Run], failed: Sequence[tuple[str, str]], out: str, *, as_json: bool
) -> None:
    """Print the table, write the report, and leave with 1 if something went wrong."""
    from raysim.report.writer import write_report
    from raysim.studies.compare.table import COLUMNS, MORE, rows_of, texts

    rows = rows_of(runs)
    places = [run.folder.root for run in runs if run.folder.is_finished]
    files: list[str] = []
    problems = [f"{title} failed: {error}" for title, error in failed]
    if places:
        try:
            files = [str(file) for file in write_report(places, out).files]
        except RaysimError as wrong:  # the runs are there, and stay
            problems.append(f"no report: {wrong}; then: raysim report {' '.join(places)}")
    if as_json:
        found = {
            "methods": [row.plain() for row in rows],
            "runs": places,
            "failed": [{"run": title, "error": error} for title, error in failed],
            "report": files,
        }
        click.echo(json.dumps(found))
    else:
        print_table((*COLUMNS, *MORE), map(texts, rows))
        if len(rows) > 1:
            to = f"difference: to {rows[0].label}, seed by seed, in points"
            click.echo(f"mean ± sd over seeds; {to}")
        for file in files:
            click.echo(f"report in {file}")
    for problem in problems:
        click.echo(f"raysim: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)

"""``raysim compare``: several methods on the same data, one table, one report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import check_resume, study_options
from raysim.cli.tables import print_table
from raysim.errors import RaysimError
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.studies.comparison import Point
    from raysim.studies.study import Cell, Outcome


@click.command("compare")
@study_options("runs/NAME/comparison/")
def command(config: str, words: tuple[str, ...], **options: Any) -> None:
    """Run CONFIG with each of several methods and compare them.

    With one seed all methods get the same data, partition, wrong labels and initial weights;
    differences to the first method are taken seed by seed. Every run is a process of its own and
    leaves an ordinary run directory. As many go at once as CPUs and memory allow, without Ray;
    --jobs 1 uses the config's runtime. With runtime.address (or RAY_ADDRESS) every run is a task of
    that Ray cluster. One that fails does not stop the others; the exit code is 1.

    \b
    raysim compare quickstart --methods fb_nll,fb_nll_minus,single --seeds 0-4
    raysim compare quickstart --methods single,prox:single --with prox train.proximal=0.1
    raysim compare quickstart --import my_methods --methods my_method,fb_nll train.rounds=5
    """  # noqa: D301 -- click reads the real \b character
    check_resume(options["resume"], options["force"])
    run_comparison(config, words, [{}], folder="comparison", **options)


def run_comparison(
    config: str, overrides: Sequence[str], points: Sequence[Point], *, folder: str, **options: Any
) -> None:
    """Run every method and seed at every point, print the table and write the report."""
    from raysim.report.writer import checked_output
    from raysim.storage.files import make_output_folder
    from raysim.studies.comparison import cells_of, parse_entries, parse_seeds
    from raysim.studies.study import check_fit, unfinished

    seeds = parse_seeds(options["seeds"])
    entries = parse_entries(options["methods"], options["settings"])
    how = {"seeds": seeds, "imports": options["imports"], "points": points}
    cells = cells_of(config, overrides, entries, **how)
    out = options["out"] or f"runs/{cells[0].run_config.name}/{folder}/"
    place = checked_output(out).folder
    todo = unfinished(cells, resume=options["resume"], force=options["force"])
    check_fit(todo)
    make_output_folder(place)
    failed = _execute(cells, todo, place / "errors", options) if todo else []
    _show(cells, list(points[0]), failed, out, as_json=options["as_json"])


def _execute(
    cells: Sequence[Cell], todo: Sequence[Cell], errors: Path, options: Any
) -> list[Outcome]:
    """Do the runs; return those that failed."""
    from raysim.studies.study import default_backend, run_study

    config = todo[0].run_config
    backend = default_backend(config, options["jobs"])
    how = (
        f"{min(backend.at_once, len(todo))} at once, {backend.how}"
        if backend.local
        else f"one after another, runtime.kind={config.runtime.kind}"
    )
    say = partial(print, file=sys.stderr if options["as_json"] else sys.stdout, flush=True)
    say(f"{config.name}: {len(todo)} of {len(cells)} runs to do, {how}")
    outcomes = run_study(
        todo,
        backend=backend,
        say=say,
        errors=errors,
        force=options["force"],
        again="the same command with --resume",
    )
    return [outcome for outcome in outcomes if outcome.error]


def _show(
    cells: Sequence[Cell],
    swept: Sequence[str],
    failed: Sequence[Outcome],
    out: str,
    *,
    as_json: bool,
) -> None:
    """Print the table, write the report, and leave with 1 if something went wrong."""
    from raysim.report.writer import write_report
    from raysim.studies.comparison import COLUMNS, rows_of

    rows = rows_of(cells)
    places = [cell.folder.root for cell in cells if cell.is_finished]
    files: list[str] = []
    problems = [f"{outcome.cell.title} failed: {outcome.error}" for outcome in failed]
    if places:
        try:
            files = [str(file) for file in write_report(places, out, swept=swept).files]
        except RaysimError as wrong:  # the runs are there, and stay
            problems.append(f"no report: {wrong}; then: raysim report {' '.join(places)}")
    if as_json:
        found = {
            "methods": [row.plain() for row in rows],
            "runs": places,
            "failed": [{"run": o.cell.title, "error": o.error} for o in failed],
            "report": files,
        }
        click.echo(json_text(found))
    else:
        print_table(["method", *swept, *COLUMNS], (row.texts() for row in rows))
        if len(rows) > 1:
            to = f"difference: to {rows[0].label['method']}, seed by seed, in points"
            click.echo(f"mean ± sd over seeds; {to}")
        for file in files:
            click.echo(f"report in {file}")
    for problem in problems:
        click.echo(f"raysim: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)

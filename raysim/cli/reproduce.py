"""``raysim reproduce``: a table of the papers beside the measured one."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from raysim.cli.options import check_resume, jobs_option, json_option
from raysim.cli.tables import print_table
from raysim.errors import ConfigError, OutputError


@click.command("reproduce")
@click.argument("name", required=False)
@click.option("--list", "show_list", is_flag=True, help="Show every table and figure.")
@click.option(
    "--seeds", metavar="N|A-B", help="How many seeds, or which; default: the paper's, small 1."
)
@click.option("--cells", metavar="PATTERN,...", help="Only cells like mnist/*/rcc_pfl.")
@click.option(
    "--scale",
    type=click.Choice(["full", "small"]),
    default="full",
    show_default=True,
    help="full: the paper's setting; small: a stated reduction.",
)
@jobs_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/reproduce"),
    show_default=True,
    help="Folder of the results.",
)
@click.option("--resume", is_flag=True, help="Go on; finished runs are skipped in any case.")
@click.option("--force", is_flag=True, help="Run the selected cells again.")
@click.option("--summary", type=click.Path(path_type=Path), metavar="DIR", help="Write up DIR.")
@click.option("--write", type=click.Path(path_type=Path), metavar="FILE", help="Summary's file.")
@json_option
def command(name: str | None, **options: Any) -> None:
    """Run the cells of table or figure NAME and show them beside what the paper prints.

    Called again it goes on where it was stopped; finished runs are not repeated.

    \b
    raysim reproduce --list
    raysim reproduce rcc-pfl/table2 --cells 'mnist/*' --seeds 5
    raysim reproduce fb-nll/table9 --scale small --cells 'cifar10/m3/*'
    raysim reproduce --summary runs/reproduce --write RESULTS.md
    """  # noqa: D301 -- click reads the real \b character
    if options["summary"] is not None:
        _summary(options["summary"], options["write"])
    elif options["show_list"]:
        _list(options["as_json"])
    elif name is None:
        raise ConfigError(
            "reproduce needs the NAME of a table or figure, got none; see raysim reproduce --list"
        )
    else:
        check_resume(options)
        _reproduce(name, **options)


def _summary(folder: Path, file: Path | None) -> None:
    from raysim.studies.reproduce.summary import write_summary

    text = write_summary(folder)
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as wrong:
        raise OutputError(f"--write {file} cannot be written ({wrong}); choose another") from wrong
    click.echo(f"written to {file}")


def _list(as_json: bool) -> None:
    from raysim.studies.reproduce.costs import table_hours
    from raysim.studies.reproduce.recipes import SCALES, TARGETS, seeds_of

    rows: list[dict[str, Any]] = [
        {
            "name": target.name,
            "title": target.title,
            "cells": len(target.cells),
            "printed": len(target.printed),
            "runs": {"full": len(target.cells) * seeds_of(target), "small": len(target.cells)},
            "core_hours": {
                scale: table_hours(target, scale, seeds_of(target) if scale == "full" else 1)
                for scale in SCALES
            },
        }
        for target in TARGETS.values()
    ]
    if as_json:
        click.echo(json.dumps({"tables": rows}))
        return
    lines = [
        [
            *(row["name"], row["title"], str(row["cells"]), str(row["printed"] or "none")),
            *(str(row["runs"][s]) + "  " + _hours(row["core_hours"][s]) for s in SCALES),
        ]
        for row in rows
    ]
    header = ["name", "what", "cells", "printed", "full: runs, cost", "small: runs, cost"]
    print_table(header, lines, left=2)
    click.echo("printed: numbers of the paper to compare with; none: no published number here")
    click.echo("cost: hours of one core without a GPU; full has the paper's seeds, small 1")


def _hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours < 10 else f"{hours:,.0f} h"


def _reproduce(
    name: str,
    *,
    seeds: str | None,
    cells: str | None,
    scale: Any,
    jobs: int | None,
    out: Path,
    force: bool,
    as_json: bool,
    **_: Any,
) -> None:
    from raysim.studies.processes import default_jobs
    from raysim.studies.reproduce.plan import check_data, plan
    from raysim.studies.reproduce.recipes import find_target, parse_seeds, seeds_of, select_cells
    from raysim.studies.reproduce.runner import execute

    target = find_target(name)
    chosen, wanted = select_cells(target, cells), parse_seeds(seeds, scale, seeds_of(target))
    runs, failures = plan(target, chosen, wanted, scale=scale, out=out, force=force)
    if runs:
        say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
        check_data(runs)
        count = jobs or default_jobs()
        hours = sum(run.minutes for run in runs) / 60
        every = len(chosen) * len(wanted)
        say(
            f"{name}, scale {scale}: {len(runs)} of {every} runs to do, {count} at once, "
            f"about {_hours(hours)} of one core"
        )
        failures = [*failures, *execute(runs, jobs=count, say=say, force=force)]
    _report(target, chosen, scale, out, failures, as_json)


def _report(
    target: Any, chosen: Sequence[Any], scale: Any, out: Path, failures: Any, as_json: bool
) -> None:
    from raysim.studies.reproduce.figures import draw_figure
    from raysim.studies.reproduce.results import read_results, rows_of, stored_scale
    from raysim.studies.reproduce.summary import reduced_texts

    results = read_results(out, target, scale)
    addresses = {cell.address for cell in chosen}
    rows = [row for row in rows_of(target, results) if row.cell in addresses]
    reduced = reduced_texts(results) if stored_scale(target, scale) == "small" else []
    folder = out / target.name / stored_scale(target, scale)
    picture = draw_figure(target, results, folder)
    if as_json:
        found = {
            "name": target.name,
            "scale": stored_scale(target, scale),
            "out": str(out),
            "reduced": reduced,
            "cells": [row.plain() for row in rows],
            "failed": [vars(failure) for failure in failures],
        }
        click.echo(json.dumps(found))
    else:
        _print_rows(target, rows, results, scale, out)
        for text in reduced:
            click.echo(f"reduced, not the paper's setting: {text}")
        click.echo(f"saved in {folder}" + (f", drawn in {picture}" if picture else ""))
    for failure in failures:
        click.echo(f"raysim: {failure.cell} seed {failure.seed} failed: {failure.error}", err=True)
    if failures:
        raise click.exceptions.Exit(1)


def _print_rows(target: Any, rows: Sequence[Any], results: Any, scale: Any, out: Path) -> None:
    from raysim.studies.reproduce.summary import columns_of, row_texts

    header = ["cell", "measured", "seeds", "published", "difference"]
    if target.kind != "accuracy":
        print_table(header, [[row.label, *row_texts(row, 3)] for row in rows])
        return
    columns: dict[str, Any] = columns_of(target, scale, out, results)
    for name in ("rounds", "MB up / down", "minutes a run"):
        del columns[name]
    lines = []
    for row in rows:
        own = [result for result in results if result["cell"] == row.cell]
        lines.append([row.label, *row_texts(row, 2), *(show(own) for show in columns.values())])
    print_table([*header, *columns], lines)

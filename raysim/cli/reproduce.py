"""``raysim reproduce``: a table of the papers beside the measured one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import check_resume, jobs_option, json_option
from raysim.cli.tables import print_table
from raysim.errors import ConfigError, OutputError
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.studies.reproduce.papers import Scale, Table, TableCell


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
        check_resume(options["resume"], options["force"])
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
    from raysim.studies.reproduce.papers import SCALES, TABLES

    rows: list[dict[str, Any]] = []
    for table in TABLES.values():
        cells, seeds = table.cells, {"full": table.paper.seeds, "small": 1}
        minutes = {s: sum(table.minutes(cell, s) for cell in cells) for s in SCALES}
        rows.append(
            {
                "name": table.name,
                "title": table.title,
                "cells": len(cells),
                "printed": len(table.printed),
                "runs": {s: len(cells) * seeds[s] for s in SCALES},
                "core_hours": {s: seeds[s] * minutes[s] / 60 for s in SCALES},
            }
        )
    if as_json:
        click.echo(json_text({"tables": rows}))
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


def _reproduce(name: str, *, cells: str | None, scale: Scale, out: Path, **options: Any) -> None:
    from raysim.studies.reproduce.papers import find_table, parse_seeds, select_cells
    from raysim.studies.reproduce.plan import check_data, plan
    from raysim.studies.study import default_backend, run_study

    table, force, as_json = find_table(name), options["force"], options["as_json"]
    chosen = select_cells(table, cells)
    seeds = parse_seeds(options["seeds"], scale, table.paper.seeds)
    runs, failures = plan(table, chosen, seeds, scale=scale, out=out, force=force)
    if runs:
        say = partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
        check_data(table, runs)
        backend = default_backend(None, options["jobs"])
        say(
            f"{name}, scale {scale}: {len(runs)} of {len(chosen) * len(seeds)} runs to do, "
            f"{backend.at_once} at once, about {_hours(sum(run.minutes for run in runs) / 60)} of "
            "one core"
        )
        failures += run_study(runs, backend=backend, say=say, errors=out, force=force)
    failed = [{**o.cell.label, "error": o.error} for o in failures if o.error]
    _show(table, chosen, scale, out, failed, as_json=as_json)
    for one in failed:
        click.echo(f"raysim: {one['cell']} seed {one['seed']} failed: {one['error']}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _show(
    table: Table,
    chosen: Sequence[TableCell],
    scale: Scale,
    out: Path,
    failed: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
) -> None:
    from raysim.studies.reproduce.figures import draw_figure
    from raysim.studies.reproduce.results import read_results, rows_of, stored_scale
    from raysim.studies.reproduce.summary import grid, reduced_texts

    results = read_results(out, table, scale)
    addresses = {cell.address for cell in chosen}
    rows = [row for row in rows_of(table, results) if row.cell in addresses]
    stored = stored_scale(table, scale)
    reduced = reduced_texts(results) if stored == "small" else []
    folder = out / table.name / stored
    picture = draw_figure(table, results, folder)
    if as_json:
        found = {
            "name": table.name,
            "scale": stored,
            "out": str(out),
            "reduced": reduced,
            "cells": [row.plain() for row in rows],
            "failed": [{**one, "seed": int(one["seed"])} for one in failed],
        }
        click.echo(json_text(found))
        return
    hide = ("rounds", "MB up / down", "minutes a run")
    print_table(*grid(table, scale, out, results, rows, hide=hide))
    for text in reduced:
        click.echo(f"reduced, not the paper's setting: {text}")
    click.echo(f"saved in {folder}" + (f", drawn in {picture}" if picture else ""))

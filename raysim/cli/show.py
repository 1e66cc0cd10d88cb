"""``raysim show``: what run directories hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import import_option

if TYPE_CHECKING:
    from raysim.storage.objects import Storage


@click.command("show")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
@click.option("--plan", is_flag=True, help="Show who would run where: CONFIG [KEY=VALUE]...")
@import_option
def command(runs: tuple[str, ...], as_json: bool, plan: bool, imports: tuple[str, ...]) -> None:
    """Show the results of run directories (paths or URLs); a folder of runs shows all below it.

    \b
    raysim show runs
    raysim show --plan quickstart runtime.address=auto runtime.per_actor.gpus=0.25
    """  # noqa: D301 -- click reads the real \b character
    if plan:
        from raysim.cli.plan import print_plan

        print_plan(runs[0], runs[1:], imports=imports, as_json=as_json)
        return
    from raysim.cli.tables import print_result, print_results
    from raysim.errors import DataError
    from raysim.runs.folder import find_runs

    folders: list[Storage] = []
    for run in runs:
        found = find_runs(run)
        if not found:
            raise DataError(f"no run directory at {run}; `raysim run` makes one")
        folders += found
    finished = [_result(f) for f in folders if f.exists("result.json")]
    if as_json:
        for summary in finished:
            click.echo(json.dumps(summary))
        return
    if len(finished) == 1:
        print_result(finished[0])
    elif finished:
        print_results(finished)
    for folder in folders:
        if not folder.exists("result.json"):
            rounds = _count_rounds(folder)
            click.echo(
                f"{folder.root}: not finished, {rounds} rounds recorded; go on with --resume"
            )


def _result(folder: Storage) -> dict[str, Any]:
    from raysim.errors import DataError

    try:
        summary: dict[str, Any] = json.loads(folder.read("result.json"))
    except ValueError as wrong:
        raise DataError(
            f"{folder.root}/result.json is not readable: {wrong}; run it again"
        ) from wrong
    return {**summary, "run_dir": folder.root}


def _count_rounds(folder: Storage) -> int:
    return folder.read("rounds.jsonl").count(b"\n") if folder.exists("rounds.jsonl") else 0

"""``raysim show``: what run directories hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from raysim.cli.options import import_option
from raysim.cli.tables import print_result, print_results, print_table
from raysim.errors import DataError
from raysim.storage.files import json_text

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
        _plan(runs[0], runs[1:], imports, as_json)
        return
    from raysim.runs.folder import RunFolder, find_runs

    folders: list[Storage] = []
    for run in runs:
        found = find_runs(run)
        if not found:
            raise DataError(f"no run directory at {run}; `raysim run` makes one")
        folders += found
    finished = [
        {**RunFolder(f.root).read("result.json"), "run_dir": f.root}
        for f in folders
        if f.exists("result.json")
    ]
    if as_json:
        for summary in finished:
            click.echo(json_text(summary))
        return
    if len(finished) == 1:
        print_result(finished[0])
    elif finished:
        print_results(finished)
    for folder in folders:
        if not folder.exists("result.json"):
            name = "rounds.jsonl"
            rounds = folder.read(name).count(b"\n") if folder.exists(name) else 0
            click.echo(
                f"{folder.root}: not finished, {rounds} rounds recorded; go on with --resume"
            )


def _plan(config: str, overrides: Sequence[str], imports: Sequence[str], as_json: bool) -> None:
    """Print who would run where, before anything runs: nodes, actors, clients, servers."""
    from raysim.config import load_config
    from raysim.experiment import preview

    layout = preview(load_config(config, list(overrides), imports=imports))
    if as_json:
        click.echo(json_text(layout))
        return
    if layout["kind"] == "local":
        click.echo(
            f"{layout['clients']} clients in this process; no actor starts ({layout['why']})"
        )
        return
    share = layout["per_actor"]
    gpu = f" and {share['gpus']:g} GPU" if share["gpus"] else ""
    actors = sum(len(node["actors"]) for node in layout["nodes"])
    title = (
        f"{layout['clients']} clients on {actors} actors of {share['cpus']:g} CPU{gpu} each, "
        f"{layout['servers']} parameter server(s)"
    )
    header = ("node", "CPUs", "GPUs", "client actors", "clients", "samples", "also runs")
    rows = []
    for node in layout["nodes"]:
        row = [node["name"], f"{node['cpus']:g}", f"{node['gpus']:g}", len(node["actors"])]
        row += [sum(a["clients"] for a in node["actors"])]
        row += [sum(a["samples"] for a in node["actors"])]
        also = ["coordinator"] if node["coordinator"] else []
        also += [f"{node['servers']} parameter server(s)"] if node["servers"] else []
        rows.append([*map(str, row), ", ".join(also)])
    print_table(header, rows, title=title, wrap=True)

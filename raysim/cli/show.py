"""``raysim show``: what run directories hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command("show")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run.")
def command(runs: tuple[Path, ...], as_json: bool) -> None:
    """Show the results of run directories; a folder of runs shows all below it."""
    from raysim.cli.tables import print_result, print_results
    from raysim.errors import DataError

    for run in runs:
        if not _below(run):
            raise DataError(f"no run directory at {run}; `raysim run` makes one")
    folders = [folder for run in runs for folder in _below(run)]
    finished = [_result(f) for f in folders if (f / "result.json").is_file()]
    if as_json:
        for summary in finished:
            click.echo(json.dumps(summary))
        return
    if len(finished) == 1:
        print_result(finished[0])
    elif finished:
        print_results(finished)
    for folder in folders:
        if not (folder / "result.json").is_file():
            rounds = _count_rounds(folder)
            click.echo(f"{folder}: not finished, {rounds} rounds recorded; go on with --resume")


def _below(path: Path) -> list[Path]:
    if (path / "config.yaml").is_file():
        return [path]
    return sorted(p.parent for p in path.rglob("config.yaml")) if path.is_dir() else []


def _result(folder: Path) -> dict[str, Any]:
    from raysim.errors import DataError

    try:
        summary: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except ValueError as wrong:
        raise DataError(f"{folder}/result.json is not readable: {wrong}; run it again") from wrong
    return {**summary, "run_dir": str(folder)}


def _count_rounds(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0

"""``raysim scale``: what a run costs as the number of clients grows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


@click.command("scale")
@click.option("--clients", required=True, metavar="K,K,...", help="Numbers of clients.")
@click.option("--dim", default=64, show_default=True, help="Numbers per sample.")
@click.option("--samples", default=60, show_default=True, help="Samples per client.")
@click.option("--groups", default=5, show_default=True, help="Tasks, two classes each.")
@click.option("--rounds", default=3, show_default=True, help="Rounds of training.")
@click.option(
    "--landmarks",
    type=int,
    metavar="N",
    help="Group by N landmarks, an approximation; sizes up to N are grouped exactly.",
)
@click.option("--actors", default="auto", metavar="auto|N", help="Client actors.")
@click.option("--address", metavar="ADDR", help="Ray cluster to join; default: this machine.")
@click.option("--local", is_flag=True, help="In this process, without Ray.")
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/scale"),
    show_default=True,
    help="Folder of the runs and of scale.jsonl.",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the cost.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, last line.")
def command(
    clients: str, actors: str, out: Path, plot: Path | None, as_json: bool, **options: Any
) -> None:
    """Run FB-NLL on synthetic clients for each K and show time, bytes and memory.

    Called again with the same arguments it goes on with the sizes that are missing.

    \b
    raysim scale --clients 100,1000
    raysim scale --clients 1000,10000 --landmarks 200 --out runs/landmarks --plot cost.png
    """  # noqa: D301 -- click reads the real \b character
    from raysim.cli.progress import log_to_terminal
    from raysim.studies.scale import (
        ScaleSettings,
        check_plot,
        draw,
        parse_actors,
        parse_clients,
        run_scale,
    )

    how = ScaleSettings(clients=parse_clients(clients), actors=parse_actors(actors), **options)
    if plot is not None:
        check_plot(plot)
    log_to_terminal()
    stream = sys.stderr if as_json else sys.stdout
    found = run_scale(how, out, watch=lambda count, run: _watch(count, run, stream))
    if plot is not None:
        draw(found["rows"], plot)
    if as_json:
        click.echo(json.dumps(found))
    else:
        _print(found, plot)


@contextmanager
def _watch(count: int, experiment: Any, stream: Any) -> Iterator[Any]:
    from raysim.cli.progress import show_progress

    print(f"{count} clients", file=stream, flush=True)
    with show_progress(experiment, stream=stream, quiet=False) as listener:
        yield listener


def _print(found: Mapping[str, Any], plot: Path | None) -> None:
    rows = found["rows"]
    _print_table("seconds", rows, "seconds", {"peak MB": _memory, "ARI": _ari, "noise %": _noise})
    sent = {f"{d} kB": lambda row, d=d: f"{row['bytes_per_client'][d] / 1e3:.1f}" for d in _WAYS}
    _print_table("per client, milliseconds", rows, "ms_per_client", sent)
    if found["start_s"]:
        click.echo(f"packages and Ray started in {found['start_s']:.1f} s, not counted above")
    if found["arguments"]["address"]:
        click.echo("peak MB: this process only; the actors belong to the cluster")
    click.echo(f"saved in {found['out']}" + (f", drawn in {plot}" if plot else ""))


_WAYS = ("up", "down")


def _print_table(
    title: str, rows: Sequence[Mapping[str, Any]], field: str, more: Mapping[str, Any]
) -> None:
    from rich.console import Console
    from rich.table import Table

    from raysim.studies.scale import PHASES

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("clients", *PHASES, *more):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        numbers = [f"{row[field][phase]:.3f}" for phase in PHASES]
        table.add_row(str(row["clients"]), *numbers, *(show(row) for show in more.values()))
    # A pipe has no width; 80 columns could cut the table.
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _memory(row: Mapping[str, Any]) -> str:
    return "n/a" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.0f}"


def _ari(row: Mapping[str, Any]) -> str:
    return f"{row['ari']:.3f}"


def _noise(row: Mapping[str, Any]) -> str:
    return f"{100 * row['noise_before']:.1f} -> {100 * row['noise_after']:.1f}"

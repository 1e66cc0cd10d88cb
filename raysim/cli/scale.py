"""``raysim scale``: what a run costs as the number of clients grows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from raysim.cli.options import json_option
from raysim.cli.tables import print_table
from raysim.storage.files import json_text


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
@json_option
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
        click.echo(json_text(found))
    else:
        _print(found, plot)


@contextmanager
def _watch(count: int, experiment: Any, stream: Any) -> Iterator[Any]:
    from raysim.cli.progress import show_progress

    print(f"{count} clients", file=stream, flush=True)
    with show_progress(experiment, stream=stream, quiet=False) as listener:
        yield listener


def _print(found: Mapping[str, Any], plot: Path | None) -> None:
    from raysim.studies.scale import PHASES

    seconds, per_client = [], []
    for row in found["rows"]:
        peak, sent = row["peak_bytes"], row["bytes_per_client"]
        seconds.append(
            [
                str(row["clients"]),
                *(f"{row['seconds'][phase]:.3f}" for phase in PHASES),
                "n/a" if peak is None else f"{peak / 1e6:.0f}",
                f"{row['ari']:.3f}",
                f"{100 * row['noise_before']:.1f} -> {100 * row['noise_after']:.1f}",
            ]
        )
        per_client.append(
            [
                str(row["clients"]),
                *(f"{row['ms_per_client'][phase]:.3f}" for phase in PHASES),
                *(f"{sent[way] / 1e3:.1f}" for way in ("up", "down")),
            ]
        )
    header = ["clients", *PHASES]
    print_table([*header, "peak MB", "ARI", "noise %"], seconds, left=0, title="seconds")
    title = "per client, milliseconds"
    print_table([*header, "up kB", "down kB"], per_client, left=0, title=title)
    if found["start_s"]:
        click.echo(f"packages and Ray started in {found['start_s']:.1f} s, not counted above")
    if found["arguments"]["address"]:
        click.echo("peak MB: this process only; the actors belong to the cluster")
    click.echo(f"saved in {found['out']}" + (f", drawn in {plot}" if plot else ""))

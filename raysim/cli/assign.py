"""``raysim assign``: the group of a client that arrives late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raysim.cli.options import trust_option
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.standalone.assignment import Assignment, Grouped


@click.command("assign")
@click.argument("run")
@click.argument("features", nargs=-1, required=True, metavar="FEATURES...")
@trust_option
@click.option("--vectors", is_flag=True, help="FEATURES are eigenvectors (D, Q) only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per client.")
def command(run: str, features: tuple[str, ...], vectors: bool, as_json: bool) -> None:
    """Put clients that arrive late into groups of RUN, without training.

    RUN is the run directory (or URL) of a method that groups by similarity, or a folder of `raysim
    cluster`. FEATURES are npy, npz or parquet files, one per new client: its features (N, D), or
    with --vectors only the D x Q eigenvectors that it would send. The clients of RUN answer to
    them; the margin to the second group says how clear the answer is.

    \b
    raysim assign runs/quickstart/fb_nll/seed0 new-client.npy
    raysim assign clusters new-client-vectors.npy --vectors
    """  # noqa: D301 -- click reads the real \b character
    from raysim.data.features.feature_files import check_exists
    from raysim.standalone.assignment import assign, open_grouped, read_vectors, vectors_of_features

    for file in features:
        check_exists(file)
    grouped = open_grouped(run)
    read = read_vectors if vectors else vectors_of_features
    groups = assign(grouped, [read(grouped, file) for file in features])
    for file, found in zip(features, groups, strict=True):
        if as_json:
            click.echo(json_text({"file": file, **_plain(found)}))
        else:
            _print(file, grouped, found)


def _plain(found: Assignment) -> dict[str, Any]:
    return {
        "group": found.group,
        "relevance": {str(g): round(r, 6) for g, r in found.relevance.items()},
        "margin": None if found.margin is None else round(found.margin, 6),
        "second": found.second,
        "rank": found.rank,
        "within_groups": found.typical,
        "between_groups": found.foreign,
        "fits": found.fits,
        "model": found.model,
    }


def _print(file: str, grouped: Grouped, found: Assignment) -> None:
    margin = (
        "only group"
        if found.margin is None
        else f"margin {found.margin:.3f} to group {found.second}"
    )
    click.echo(f"{file}  group {found.group}  {margin}  rank {found.rank}")
    for group, mean in found.relevance.items():
        size = int((grouped.groups == group).sum())
        click.echo(f"  group {group}  {size} clients  mean relevance {mean:.3f}")
    if found.fits is False:
        click.echo(
            f"  it resembles no group well: members of a group have R {found.typical:.3f} on "
            f"average, of different groups {found.foreign:.3f}; it may have a task of its own"
        )
    if found.model:
        click.echo(f"  model {found.model}")

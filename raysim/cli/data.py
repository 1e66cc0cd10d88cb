"""``raysim data``: bring datasets to this machine, and share a split with others."""

from __future__ import annotations

from pathlib import Path

import click

from raysim.cli.options import import_option


@click.group("data")
def command() -> None:
    """Fetch datasets; export the split and the noisy labels of a config."""


@command.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder; default $RAYSIM_DATA or the cache."
)
def fetch_command(names: tuple[str, ...], out: Path | None) -> None:
    """Bring NAME... (mnist, cifar10, ...) to this machine; what is complete is left alone."""
    from raysim.data.fetch import fetch

    fetch(names, out, say=click.echo)


@command.command("export")
@click.argument("config")
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@import_option
def export_command(
    config: str, out: Path, overrides: tuple[str, ...], imports: tuple[str, ...]
) -> None:
    """Write the split and given labels of CONFIG to OUT.npz; `partition: {kind: file}` reads it."""
    from raysim.config import choice_name, load_config
    from raysim.data.split_file import export_split
    from raysim.data.world import DriverData

    settings = load_config(config, overrides, imports=imports)
    data = DriverData(settings.data, settings.seed)
    export_split(
        out,
        split=data.split,
        noisy=data.noisy,
        dataset=choice_name(settings.data.dataset),
        digest=data.store.digest,
        seed=settings.seed,
    )
    click.echo(f"{len(data.split.clients)} clients written to {out}")

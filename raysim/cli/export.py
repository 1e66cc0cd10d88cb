"""``raysim export``: a run's models as files, from its checkpoint."""

from __future__ import annotations

import click

from raysim.cli.options import trust_option


@click.command("export")
@click.argument("run")
@trust_option
@click.option("--to", metavar="FOLDER", help="Where to; default: models/ in RUN.")
@click.option("--all", "everything", is_flag=True, help="Also more than 100 models.")
def command(run: str, to: str | None, everything: bool) -> None:
    """Write the models of RUN as safetensors files, with an index of who uses which.

    A finished run has them in models/ already, unless it has more than 100. This makes them from
    the last checkpoint: of older runs, unfinished ones, or with a model per client.
    """
    from raysim.runs.models import FOLDER, export_models
    from raysim.storage.objects import place

    where = place(run)
    files = export_models(where, None if to is None else place(to), everything=everything)
    click.echo(f"{len(files)} models and index.json written to {to or f'{run}/{FOLDER}'}")

"""Options that several verbs share."""

from __future__ import annotations

import click

import_option = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Module of your own with methods, datasets, ...; looked for in the current folder first.",
)

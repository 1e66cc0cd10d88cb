"""``raysim show --plan``: who would run where, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click


def print_plan(
    config: str, overrides: Sequence[str], *, imports: Sequence[str] = (), as_json: bool
) -> None:
    """Print the plan of a config: nodes, actors, clients, servers."""
    from raysim.config import load_config
    from raysim.experiment import preview

    layout = preview(load_config(config, list(overrides), imports=imports))
    if as_json:
        click.echo(json.dumps(layout))
        return
    if layout["kind"] == "local":
        click.echo(f"{layout['clients']} clients in this process; no actor starts")
        return
    _print_nodes(layout)


def _print_nodes(layout: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=_title(layout), title_justify="left")
    for name in ("node", "CPUs", "GPUs", "client actors", "clients", "samples", "also runs"):
        table.add_column(name, justify="left" if name in ("node", "also runs") else "right")
    for node in layout["nodes"]:
        row = [node["name"], f"{node['cpus']:g}", f"{node['gpus']:g}", len(node["actors"])]
        row += [sum(a["clients"] for a in node["actors"])]
        row += [sum(a["samples"] for a in node["actors"])]
        also = ["coordinator"] if node["coordinator"] else []
        also += [f"{node['servers']} parameter server(s)"] if node["servers"] else []
        table.add_row(*map(str, row), ", ".join(also))
    Console(soft_wrap=True).print(table)


def _title(layout: Mapping[str, Any]) -> str:
    share = layout["per_actor"]
    gpu = f" and {share['gpus']:g} GPU" if share["gpus"] else ""
    actors = sum(len(node["actors"]) for node in layout["nodes"])
    return (
        f"{layout['clients']} clients on {actors} actors of {share['cpus']:g} CPU{gpu} each, "
        f"{layout['servers']} parameter server(s)"
    )

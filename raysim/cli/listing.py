"""``raysim ls``: what can be chosen."""

from __future__ import annotations

import inspect
from typing import Any

import click

from raysim.cli.options import import_option
from raysim.cli.tables import print_table

KINDS = ("methods", "datasets", "models", "features", "noise", "partitions", "configs")


@click.command("ls")
@click.argument("kind", type=click.Choice(KINDS))
@import_option
def command(kind: str, imports: tuple[str, ...]) -> None:
    """List methods, datasets, models, features, noise models, partitions or bundled configs."""
    from raysim.config.plugins import import_modules, module_names

    import_modules(module_names(imports))
    if kind == "configs":
        rows = _configs()
    else:
        found = _registry(kind)
        rows = [(n, (inspect.getdoc(found.get(n)) or "").split("\n")[0]) for n in found.names()]
    print_table((), rows, left=2, wrap=True)


def _registry(kind: str) -> Any:
    if kind == "methods":
        from raysim.methods import METHODS

        return METHODS
    if kind == "models":
        from raysim.models.zoo import MODELS

        return MODELS
    from raysim.data import world

    names = {"datasets": "DATASETS", "features": "FEATURES", "noise": "NOISE"}
    return getattr(world, names.get(kind, "PARTITIONS"))


def _configs() -> list[tuple[str, str]]:
    from raysim.config.bundled import bundled_configs, config_files

    rows = []
    for path in config_files():
        first = path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ").strip()
        rows.append((path.relative_to(bundled_configs()).with_suffix("").as_posix(), first))
    return rows

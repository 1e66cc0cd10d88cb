"""Options that several verbs share."""

from __future__ import annotations

import click


class Resumable(click.Command):
    """A verb with ``resume_option``; click itself would take the next word for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read ``--resume`` alone as ``--resume=yes``."""
        return super().parse_args(ctx, ["--resume=yes" if a == "--resume" else a for a in args])


def _as_resume(ctx: click.Context, param: click.Parameter, value: str | None) -> bool | str:
    return value if value == "auto" else value == "yes"


resume_option = click.option(
    "--resume",
    type=click.Choice(["auto", "yes"]),
    callback=_as_resume,
    metavar="[=auto]",
    help="Go on from the last checkpoint, to the same bits; auto: begin where there is no run yet.",
)
import_option = click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Module of your own with methods, datasets, ...; looked for in the current folder first.",
)


def _import_now(_: click.Context, __: click.Parameter, names: tuple[str, ...]) -> None:
    from raysim.config.plugins import import_modules, module_names

    import_modules(module_names(None, names))


trust_option = click.option(
    "--import",
    multiple=True,
    metavar="MODULE",
    expose_value=False,
    callback=_import_now,
    help="Module that the run's config names; it runs code, so none is imported unasked.",
)
"""For verbs that read a run directory: what the config names in ``imports`` is not trusted."""

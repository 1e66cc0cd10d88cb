"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from raysim.errors import ConfigError


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
jobs_option = click.option(
    "--jobs", type=click.IntRange(min=1), help="Runs at once; default: one per CPU."
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, last line."
)
_STUDY = (
    click.argument("config"),
    click.argument("words", nargs=-1, metavar="[KEY=VALUE]..."),
    click.option("--methods", required=True, metavar="A,B,...", help="Methods, or LABEL:METHOD."),
    click.option(
        "--with",
        "settings",
        type=(str, str),
        multiple=True,
        metavar="LABEL KEY=VALUE",
        help="A setting of one method alone; may be given again.",
    ),
    click.option(
        "--seeds", metavar="A-B|A,B", help="Like 0-4 or 0,2,5; default: the config's seed."
    ),
    import_option,
    jobs_option,
    click.option("--resume", is_flag=True, help="Keep what is finished, go on with the rest."),
    click.option("--force", is_flag=True, help="Run everything again."),
)


def study_options(out: str) -> Callable[[Any], Any]:
    """Return the decorator with what ``compare`` and ``sweep`` are told; ``out``: the report's."""
    every = (
        *_STUDY,
        click.option("--out", metavar="FILE|FOLDER", help=f"The report; default {out}."),
        json_option,
    )

    def decorate(command: Any) -> Any:
        for option in reversed(every):
            command = option(command)
        return command

    return decorate


def check_resume(resume: bool | str, force: bool) -> None:
    if resume and force:
        raise ConfigError("--resume and --force contradict each other; give one of them")

"""The ``raysim`` command: verbs, exit codes, and errors as one readable sentence."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from raysim import __version__
from raysim.errors import RaysimError

VERBS = {
    "run": "run",
    "watch": "watch",
    "show": "show",
    "compare": "compare",
    "sweep": "sweep",
    "report": "report",
    "predict": "predict",
    "export": "export",
    "cluster": "cluster",
    "assign": "assign",
    "submit": "submit",
    "status": "status",
    "fetch": "fetch",
    "ls": "listing",
    "doctor": "doctor",
    "data": "data",
    "scale": "scale",
    "reproduce": "reproduce",
}
EPILOG = (
    "Exit codes: 0 done, 1 run failed, 2 wrong usage or config, "
    "3 environment not fit, 130 interrupted."
)


class Verbs(click.Group):
    """Loads a verb's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)  # in the order a newcomer needs them

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb, or None for click's own error with suggestions."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"raysim.cli.{VERBS[cmd_name]}").command
        return command


@click.command(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="raysim")
def cli() -> None:
    """Simulate personalized federated learning under noisy labels on Ray actors."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        code: Any = cli.main(args=arguments, prog_name="raysim", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):  # click turns the second into the first
        click.echo("raysim: interrupted; what was committed can go on with --resume", err=True)
        code = 130
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except click.ClickException as wrong:
        wrong.show()
        code = wrong.exit_code
    except RaysimError as wrong:
        click.echo(f"raysim: {wrong}", err=True)
        code = wrong.exit_code
    sys.exit(code if isinstance(code, int) else 0)

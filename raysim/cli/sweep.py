"""``raysim sweep``: a comparison at every point of a grid of settings."""

from __future__ import annotations

from typing import Any

import click

from raysim.cli.compare import run_comparison
from raysim.cli.options import check_resume, study_options


@click.command("sweep")
@study_options("runs/NAME/sweep/")
def command(config: str, words: tuple[str, ...], **options: Any) -> None:
    """Run CONFIG with each method at every value of one or more settings.

    A word is a setting for all runs (key=value) or one that is swept: key=a,b,c are values,
    key=lo..hi:n are n of them from lo to hi in equal steps, key=lo..hi:n:log in equal ratios.
    Several swept keys give all combinations. Everything else is as in raysim compare: the same data
    for all methods, processes side by side, --resume goes on with what is missing.

    \b
    raysim sweep quickstart data.noise.rate=0.1..0.5:5 --methods fb_nll,single --seeds 0-2
    raysim sweep quickstart train.lr=0.001..0.1:5:log train.epochs=1,2 --methods single
    """  # noqa: D301 -- click reads the real \b character
    check_resume(options["resume"], options["force"])
    from raysim.studies.sweep import parse_sweep

    overrides, points = parse_sweep(words)
    run_comparison(config, overrides, points, folder="sweep", **options)

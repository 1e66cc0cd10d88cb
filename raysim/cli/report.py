"""``raysim report``: tables and figures of run directories."""

from __future__ import annotations

import click


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", metavar="FILE|FOLDER", help="Where to write it; default report.html, here.")
@click.option(
    "--format",
    "formats",
    metavar="FORM,...",
    help="html, md, tex, png, pdf; default html, or the ending of --out.",
)
@click.option("--title", default="", help="Heading; default: the methods and the dataset.")
@click.option(
    "--swept", default="", metavar="KEY,...", help="Settings to draw the first figure against."
)
def command(
    runs: tuple[str, ...], out: str | None, formats: str | None, title: str, swept: str
) -> None:
    """Write a report on run directories (paths or URLs); a folder stands for all runs below it.

    html is one page that needs no network. md shows PNG and tex PDF pictures, which lie in a folder
    beside it; png and pdf alone write that folder. Seeds of one config are averaged; methods with
    equal data, partition, noise and rounds are compared. What runs lack is said, not refused.

    \b
    raysim report runs
    raysim report runs/quickstart --out paper/results.tex
    raysim report runs/a runs/b --format html,png --out figures/
    raysim report runs --swept data.noise.rate
    """  # noqa: D301 -- click reads the real \b character
    from raysim.report.writer import write_report

    keys = [key.strip() for key in swept.split(",") if key.strip()]
    wanted = None
    if formats is not None:
        wanted = [form.strip().lower() for form in formats.split(",") if form.strip()]
    written = write_report(runs, out, formats=wanted, title=title, swept=keys)
    for problem in written.report.problems:
        click.echo(problem)
    lacking = [figure for figure in written.report.figures if figure.drawing is None]
    if lacking:
        names = ", ".join(figure.name for figure in lacking)
        click.echo(f"No data for {names}; the report says what is missing.")
    for file in written.files:
        click.echo(f"written to {file}")

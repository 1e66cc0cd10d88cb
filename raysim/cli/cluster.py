"""``raysim cluster``: groups of clients from a user's own feature files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.tables import print_table
from raysim.errors import ConfigError, EnvironmentNotFit, OutputError
from raysim.storage.files import json_text

if TYPE_CHECKING:
    from raysim.standalone.feature_clusters import Clusters
    from raysim.steps.grouping import GroupingSettings

FORMATS = ("png", "pdf", "html")
NEEDS = {"png": "matplotlib", "pdf": "matplotlib", "html": "plotly"}


@click.command("cluster")
@click.argument("features", nargs=-1, required=True, metavar="FEATURES...")
@click.option("--clusters", default="auto", show_default=True, metavar="M|auto", help="Groups.")
@click.option(
    "--rank",
    default="auto",
    show_default=True,
    metavar="Q|auto|threshold|full",
    help="Eigenvectors compared; auto: those above the threshold.",
)
@click.option(
    "--threshold",
    type=float,
    default=0.005,
    show_default=True,
    help="Eigenvalues below this share of the largest are left out.",
)
@click.option(
    "--linkage",
    type=click.Choice(("average", "complete", "single")),
    default="average",
    show_default=True,
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the repetitions of auto.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("clusters"),
    show_default=True,
    metavar="FOLDER",
)
@click.option(
    "--format",
    "formats",
    default="png",
    show_default=True,
    metavar="png,pdf,html|none",
    help="Plots of R and of the dendrogram.",
)
@click.option("--force", is_flag=True, help="Replace the clusters in FOLDER.")
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of a table.")
def command(
    features: tuple[str, ...],
    clusters: str,
    rank: str,
    threshold: float,
    linkage: Any,
    seed: int,
    out: Path,
    formats: str,
    force: bool,
    as_json: bool,
) -> None:
    """Group clients by the spectra of their features, without labels and without training.

    FEATURES are npy, npz or parquet files with one matrix (samples, features) each, one file per
    client; folders or patterns of them; or one npz with one array per client. Written are
    similarity.npy (R), assignment.csv, result.json and the plots. `auto` finds the number of groups
    and says how sure it is; 1 means that there are none.

    \b
    raysim cluster features/ --clusters auto
    raysim cluster 'site-*.npy' --clusters 3 --out by-site --format png,pdf
    """  # noqa: D301 -- click reads the real \b character
    wanted, how = _formats(formats), _settings(rank, threshold, linkage)
    if clusters != "auto" and not clusters.isdecimal():
        raise ConfigError(f"--clusters must be a number or auto, got {clusters!r}; correct it")
    count: Any = clusters if clusters == "auto" else int(clusters)
    _check_folder(out, force=force)
    from raysim.data.features.feature_files import find_files
    from raysim.standalone.feature_clusters import cluster_files, save_clusters, summary

    found = cluster_files(find_files(features), count, how, seed=seed)
    save_clusters(found, out, _pictures(found, wanted))
    if as_json:
        click.echo(json_text(summary(found)))
        return
    _print(found)
    click.echo(f"written to {out}")


def _settings(rank: str, threshold: float, linkage: Any) -> GroupingSettings:
    from raysim.settings import SettingError
    from raysim.steps.grouping import GroupingSettings

    if not rank.isdecimal() and rank not in ("auto", "threshold", "full"):
        raise ConfigError(
            f"--rank must be a number, auto, threshold or full, got {rank!r}; correct it"
        )
    chosen: Any = int(rank) if rank.isdecimal() else rank
    try:
        return GroupingSettings(rank=chosen, threshold=threshold, linkage=linkage)
    except SettingError as wrong:
        raise ConfigError(f"--{wrong}") from wrong


def _formats(text: str) -> tuple[str, ...]:
    import importlib.util

    wanted = () if text == "none" else tuple(part.strip() for part in text.split(","))
    for form in wanted:
        if form not in FORMATS:
            raise ConfigError(
                f"--format must be some of {', '.join(FORMATS)} or none, got {form!r}; correct it"
            )
        if importlib.util.find_spec(NEEDS[form]) is None:
            raise EnvironmentNotFit(
                f"--format {form} needs {NEEDS[form]}, which is not installed; "
                "pip install 'raysim[report]', or use --format none"
            )
    return wanted


def _check_folder(out: Path, *, force: bool) -> None:
    from raysim.standalone.feature_clusters import RESULT, read_clusters

    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / RESULT).exists():
        raise OutputError(f"--out {out} holds other files; choose an empty folder")
    read_clusters(str(out))  # raises where it is not ours
    if not force:
        raise OutputError(f"--out {out} holds clusters; choose another folder or add --force")


def _pictures(found: Clusters, formats: Sequence[str]) -> dict[str, bytes]:
    from raysim.standalone.feature_clusters import figures

    made = figures(found) if formats else []
    drawn = [figure for figure in made if figure.drawing is not None]
    pictures = {}
    for form in formats:
        if form == "html":
            pictures["clusters.html"] = _page(found, drawn).encode()
            continue
        from raysim.report.plots import draw

        pictures |= {f"{figure.name}.{form}": draw(figure, [], form) for figure in drawn}
    return pictures


def _page(found: Clusters, drawn: Sequence[Any]) -> str:
    from raysim import __version__
    from raysim.report.documents import write_page
    from raysim.report.report import Cell, Report, Table

    rows = [
        [
            Cell(file.name, file.name, note=file.path),
            Cell(str(group), float(group)),
            Cell(f"{score:.3f}", float(score)),
        ]
        for file, group, score in zip(
            found.files, found.groups.tolist(), found.silhouettes(), strict=True
        )
    ]
    caption = f"{_verdict(found)} {found.rank} eigenvectors of {found.dimension} features."
    table = Table("groups", "Groups", caption, ["client", "group", "silhouette"], rows)
    return write_page(
        Report(
            title=f"Groups of {len(found.files)} clients",
            made=f"raysim {__version__}",
            tables=[table],
            figures=drawn,
            methods=[],
            configs={},
            environments={},
            problems=[],
        )
    )


def _verdict(found: Clusters) -> str:
    """Say in one sentence what was found and how sure it is."""
    groups = "one group" if found.count == 1 else f"{found.count} groups"
    if found.auto is None:
        return f"{groups}, as asked."
    from raysim.core.group_count import REPETITIONS

    auto = found.auto
    same = round(auto.stability * REPETITIONS)
    sure = (
        f"confidence {auto.stability:.2f}: {same} of {REPETITIONS} repetitions with four fifths "
        "of the clients and of their samples find the same."
    )
    if found.count == 1:
        best = f"the best cut, into {auto.best}, has a clarity of {auto.clarity:.2f}"
        return f"no groups: {best}, too little to tell from chance; {sure}"
    return f"{groups} with a clarity of {auto.clarity:.2f}; {sure}"


def _print(found: Clusters) -> None:
    import numpy as np

    click.echo(
        f"{len(found.files)} clients  {sum(found.samples)} samples  {found.dimension} features  "
        f"rank {found.rank}  {found.how.linkage} linkage"
    )
    smallest = int(np.argmin(found.offered))
    if isinstance(found.how.rank, int) and found.rank < found.how.rank:
        least = f"{found.files[smallest].where} has no more samples"
        why = "there are no more features" if found.rank == found.dimension else least
        click.echo(f"rank {found.how.rank} is capped at {found.rank}: {why}", err=True)
    click.echo(_verdict(found))
    if found.auto is not None:
        scores = found.auto.scores
        order = sorted(scores, key=lambda m: -scores[m])[:4]
        click.echo("best cuts  " + "  ".join(f"M={m} {scores[m]:.2f}" for m in order))
    own, rows = found.silhouettes(), []
    for group in range(found.count):
        members = found.members(group)
        inside, following = _means(found, group)
        names = [found.files[k].name for k in members]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        cells = (str(group), str(len(members)), inside, following, f"{own[members].mean():.3f}")
        rows.append([*cells, ", ".join(names[:8]) + more])
    header = ("group", "clients", "R inside", "R to next", "silhouette", "members")
    print_table(header, rows, left=0, wrap=True)


def _means(found: Clusters, group: int) -> tuple[str, str]:
    """Return the mean R among a group's members, and with the group that is most like it."""
    members = found.members(group)
    block = found.similarity[members][:, members]
    pairs = len(members) * (len(members) - 1)
    inside = f"{(block.sum() - len(members)) / pairs:.3f}" if pairs else "-"
    means = [
        float(found.similarity[members][:, found.members(other)].mean())
        for other in range(found.count)
        if other != group
    ]
    return inside, f"{max(means):.3f}" if means else "-"

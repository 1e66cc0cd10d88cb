"""FB-NLL's first half on a user's own feature files: R, groups, and what they look like.

``cluster_files`` works, ``save_clusters`` writes a folder, ``read_clusters`` reads it again.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raysim import __version__
from raysim.core.clustering import cluster, merge_tree
from raysim.core.group_count import (
    FEWEST_CLIENTS,
    REPETITIONS,
    SHARE,
    GroupCount,
    choose_count,
    silhouettes,
)
from raysim.core.threads import one_thread
from raysim.data.features.feature_files import FeatureFile, FeatureWorld
from raysim.errors import ConfigError, DataError, OutputError
from raysim.report.figure import Dendrogram, Figure, Heatmap
from raysim.seeding import stream
from raysim.standalone.comparison import compare
from raysim.steps.grouping import GroupingSettings
from raysim.steps.relevance import self_task
from raysim.storage.files import json_text, read_array, reason
from raysim.storage.objects import open_storage

RESULT = "result.json"
MADE_BY = "raysim cluster"
PICTURES = (
    *(f"{name}.{suffix}" for name in ("similarity", "dendrogram") for suffix in ("png", "pdf")),
    "clusters.html",
)
"""What else a folder of ours may hold."""
PARTS = 2
"""Draws of the samples that the repetitions take turns with; each costs a comparison of all."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clients in groups, with everything that led there."""

    files: tuple[FeatureFile, ...]
    samples: tuple[int, ...]
    dimension: int
    how: GroupingSettings
    rank: int
    offered: tuple[int, ...]
    similarity: np.ndarray
    tree: np.ndarray
    """SciPy's merge table of 1 - R."""
    groups: np.ndarray
    auto: GroupCount | None
    """How the number of groups was found, where it was not given."""

    @property
    def count(self) -> int:
        """M."""
        return int(self.groups.max()) + 1

    def silhouettes(self) -> np.ndarray:
        """How much closer each client is to its own group than to the next, -1 to 1."""
        return silhouettes(self.similarity, self.groups)

    def members(self, group: int) -> np.ndarray:
        """Numbers of the clients of a group."""
        return np.flatnonzero(self.groups == group)


def cluster_files(
    files: Sequence[FeatureFile],
    count: int | Literal["auto"],
    how: GroupingSettings | None = None,
    *,
    seed: int = 0,
) -> Clusters:
    """Group the clients of ``files`` by the spectra of their features (FB-NLL Eq. 2-6)."""
    how = how or GroupingSettings()
    _check_number(files, count)
    world = FeatureWorld(files)
    found = compare(world.clients(), how)
    samples = tuple(world.samples[k] for k in range(len(files)))
    auto = None
    if count == "auto":
        auto = _count(files, samples, found.similarity, replace(how, rank=found.rank), seed)
        groups = auto.groups
    else:
        groups = cluster(found.similarity, count, how.linkage)
    return Clusters(
        files=tuple(files),
        samples=samples,
        dimension=world.dimension,
        how=how,
        rank=found.rank,
        offered=found.offered,
        similarity=found.similarity,
        tree=merge_tree(found.similarity, how.linkage),
        groups=groups,
        auto=auto,
    )


def _check_number(files: Sequence[FeatureFile], count: int | Literal["auto"]) -> None:
    if len(files) < 2:
        raise DataError(
            f"at least two clients are needed, got {len(files)} ({files[0].path}); name more "
            "files, a folder, or an npz with one array per client"
        )
    if count == "auto" and len(files) < FEWEST_CLIENTS:
        raise ConfigError(
            f"--clusters auto needs at least {FEWEST_CLIENTS} clients, got {len(files)}; name the "
            "number"
        )
    if count != "auto" and not 1 <= count <= len(files):
        raise ConfigError(
            f"--clusters must be between 1 and the number of clients ({len(files)}), got {count}; "
            "change it, or use auto"
        )


def _count(
    files: Sequence[FeatureFile],
    samples: Sequence[int],
    similarity: np.ndarray,
    how: GroupingSettings,
    seed: int,
) -> GroupCount:
    """Return how many groups there are; repetitions use a part of every client's samples."""
    arguments = {"rank": how.rank, "seed": seed, "arrays": "auto"}
    with one_thread():
        own = [self_task(client, {}, arguments)[1] for client in FeatureWorld(files).clients()]
    parts = []
    for part in range(PARTS):
        rngs = [stream(seed, "part", part, k) for k in range(len(files))]
        rows = [  # four fifths of the samples, rounded up, ascending
            np.sort(rng.choice(count, math.ceil(SHARE * count), replace=False))
            for count, rng in zip(samples, rngs, strict=True)
        ]
        parts.append(compare(FeatureWorld(files, rows).clients(), how).similarity)
    rng = stream(seed, "group_count")
    return choose_count(similarity, np.array(own), how.linkage, rng=rng, parts=parts)


# ---- a folder ------------------------------------------------------------------------------


def save_clusters(found: Clusters, folder: Path, pictures: Mapping[str, bytes]) -> None:
    """Write similarity.npy, assignment.csv, the pictures, and result.json last.

    Files of an earlier call are removed first, so that none of them stands beside the new groups.
    """
    storage = open_storage(folder)
    matrix = io.BytesIO()
    np.save(matrix, found.similarity)
    try:
        for name in (RESULT, *PICTURES):
            storage.remove(name)
        storage.write("similarity.npy", matrix.getvalue())
        storage.write("assignment.csv", _assignment(found).encode())
        for name, content in pictures.items():
            storage.write(name, content)
        storage.write(RESULT, json_text(summary(found), indent=1).encode() + b"\n")
    except OSError as wrong:
        raise OutputError(
            f"--out {folder} cannot be written ({reason(wrong)}); choose another folder"
        ) from wrong


def summary(found: Clusters) -> dict[str, Any]:
    """Return the content of result.json."""
    own = found.silhouettes()
    clients = zip(found.files, found.samples, found.groups, own, strict=True)
    return {
        "made_by": MADE_BY,
        "version": __version__,
        "settings": {**asdict(found.how), "groups": "auto" if found.auto else found.count},
        "dimension": found.dimension,
        "rank": found.rank,
        "count": found.count,
        "auto": None if found.auto is None else _auto(found.auto),
        "silhouette": round(float(own.mean()), 6),
        "heights": [round(float(height), 6) for height in found.tree[:, 2]],
        "clients": [
            {
                "name": file.name,
                "path": str(Path(file.path).resolve()),
                "member": file.member,
                "samples": samples,
                "group": int(group),
                "silhouette": round(float(score), 6),
            }
            for file, samples, group, score in clients
        ],
    }


def _auto(auto: GroupCount) -> dict[str, Any]:
    return {
        "confidence": auto.stability,
        "repetitions": REPETITIONS,
        "best": auto.best,
        "clarity": round(auto.clarity, 6),
        "scores": {str(m): round(score, 6) for m, score in auto.scores.items()},
        "chance": round(auto.chance, 6),
    }


def _assignment(found: Clusters) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["file", "client", "group", "silhouette"])
    own = found.silhouettes()
    for file, group, score in zip(found.files, found.groups, own, strict=True):
        rows.writerow([file.path, file.name, int(group), f"{score:.6f}"])
    return text.getvalue()


def read_clusters(folder: str) -> tuple[dict[str, Any], np.ndarray]:
    """Return result.json and R of a folder that ``save_clusters`` wrote."""
    storage = open_storage(folder)

    def say(wrong: object) -> str:
        return f"{folder} must be a folder of `{MADE_BY}`, got: {wrong}; make it again"

    try:
        result: dict[str, Any] = json.loads(storage.read(RESULT))
        matrix = read_array(io.BytesIO(storage.read("similarity.npy")), say)
    except (OSError, ValueError) as wrong:
        raise DataError(say(wrong)) from wrong
    ours = isinstance(result, dict) and result.get("made_by") == MADE_BY and "clients" in result
    if not ours or matrix.shape != (len(result["clients"]),) * 2:
        raise DataError(say("other files"))
    return result, matrix


# ---- figures -------------------------------------------------------------------------------


def figures(found: Clusters) -> list[Figure]:
    """Return R in the order of the dendrogram, and the dendrogram with its cut."""
    from raysim.report.grouping import grouping_figures
    from raysim.report.records import Run
    from raysim.runs.record import RoundRecord

    run = Run(
        root="",
        method="",
        seed=0,
        config={"method": {"linkage": found.how.linkage}},
        yaml="",
        environment={},
        records=[RoundRecord(rank=found.rank, groups=found.groups.tolist())],
        result=None,
        storage=open_storage("."),
        label=f"{len(found.files)} clients",
        _arrays={"similarity": found.similarity},
    )
    names = [file.name for file in found.files]
    return [_named(figure, names) for figure in grouping_figures([run])]


def _named(figure: Figure, names: Sequence[str]) -> Figure:
    """Return the figure with clients called by their names instead of their numbers."""

    def rename(numbers: Sequence[str]) -> list[str]:
        return [names[int(n)] if n.isdecimal() else n for n in numbers]

    drawing = figure.drawing
    if isinstance(drawing, Heatmap):
        rows, columns = rename(drawing.row_names), rename(drawing.column_names)
        return replace(figure, drawing=replace(drawing, row_names=rows, column_names=columns))
    if isinstance(drawing, Dendrogram):
        return replace(figure, drawing=replace(drawing, leaves=rename(drawing.leaves)))
    return figure

"""Figures of the one-shot grouping: the similarity matrix R and its dendrogram."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysim.core.clustering import LINKAGES, merge_tree
from raysim.report.blocks import MOST_CELLS, block_mean, block_names, block_size
from raysim.report.figure import Dendrogram, Figure, Heatmap, make_figure
from raysim.report.records import Run, numbers

MOST_LEAVES = 100
"""A dendrogram of more clients shows only this many branches."""


@dataclass(frozen=True)
class _Grouping:
    """The compared clients in the order of the dendrogram."""

    clients: np.ndarray
    """Numbers of the compared clients: all, or the landmarks."""
    distances: np.ndarray
    tree: np.ndarray
    groups: np.ndarray
    """Group of every client of the run."""
    linkage: str

    @property
    def order(self) -> np.ndarray:
        """Places of the compared clients in the order of the leaves."""
        from scipy.cluster import hierarchy

        if not len(self.tree):
            return np.arange(len(self.clients))
        return np.asarray(hierarchy.leaves_list(self.tree))


def grouping_figures(runs: Sequence[Run]) -> list[Figure]:
    """Return R and the dendrogram of every run that compared its clients."""
    figures: list[Figure] = []
    for run, others in _unlike(runs):
        matrix, landmarks = _similarity(run)
        found = None if matrix is None else _grouping(run, matrix, landmarks)
        if matrix is None or found is None:
            continue
        own = [_matrix_figure(run, matrix, found), _dendrogram_figure(run, found)]
        if others:
            same = f" The same in {'; '.join(others)}."
            own = [replace(figure, caption=figure.caption + same) for figure in own]
        figures += own
    return figures or [make_figure(name, None) for name in ("similarity", "dendrogram")]


def _unlike(runs: Sequence[Run]) -> list[tuple[Run, list[str]]]:
    """Return the runs whose R or groups differ, each with the labels of those that do not."""
    found: dict[bytes, tuple[Run, list[str]]] = {}
    for run in runs:
        matrix, _ = _similarity(run)
        if matrix is None:
            continue
        groups = _groups(run, len(matrix)).tobytes()
        linkage = _linkage(run.config.get("method")).encode()
        key = hashlib.sha256(np.ascontiguousarray(matrix).tobytes() + groups + linkage).digest()
        if key in found:
            found[key][1].append(run.label)
        else:
            found[key] = (run, [])
    return list(found.values())


def _similarity(run: Run) -> tuple[np.ndarray | None, np.ndarray | None]:
    matrix = run.artifact("similarity", 2)
    if matrix is not None:
        return matrix, None
    matrix, landmarks = run.artifact("landmark_similarity", 2), run.artifact("landmarks", 1)
    return (None, None) if landmarks is None else (matrix, landmarks.astype(int))


def _grouping(run: Run, matrix: np.ndarray, landmarks: np.ndarray | None) -> _Grouping | None:
    linkage = _linkage(run.config.get("method"))
    try:
        clients = np.arange(len(matrix)) if landmarks is None else landmarks
        square = np.asarray(matrix[clients], dtype=np.result_type(matrix, np.float32))
        tree = merge_tree(square, linkage)
    except (ValueError, IndexError) as wrong:
        run.problems.append(f"{run.root}: the similarity matrix cannot be used ({wrong}).")
        return None
    distances = np.maximum(1 - square, 0)
    np.fill_diagonal(distances, 0.0)
    return _Grouping(clients, distances, tree, _groups(run, len(matrix)), linkage)


def _linkage(method: Any) -> str:
    """Return the linkage that a method's settings name, at any depth."""
    if not isinstance(method, Mapping):
        return "average"
    own = method.get("linkage")
    if own in LINKAGES:
        return str(own)
    below = (_linkage(v) for v in method.values() if isinstance(v, Mapping) and _names_linkage(v))
    return next(below, "average")


def _names_linkage(value: Mapping[str, Any]) -> bool:
    return "linkage" in value or any(
        _names_linkage(v) for v in value.values() if isinstance(v, Mapping)
    )


def _groups(run: Run, num_clients: int) -> np.ndarray:
    """Return the groups at the time R was made; one group where they are not recorded."""
    grouped = [r for r in run.records if r.has("groups")]
    made = [r for r in grouped if r.has("rank")] or grouped
    found = numbers(made[0].groups) if made else None
    if found is None or len(found) != num_clients:
        return np.zeros(num_clients, dtype=int)
    return np.array(found, dtype=int)


# ---- the matrix ----------------------------------------------------------------------------


def _matrix_figure(run: Run, matrix: np.ndarray, found: _Grouping) -> Figure:
    columns = found.clients[found.order]
    is_square = len(columns) == len(matrix)
    rows = columns if is_square else np.argsort(found.groups, kind="stable")
    ordered = matrix[np.ix_(rows, found.order)].astype(np.float64)
    values = block_mean(ordered, MOST_CELLS, MOST_CELLS)
    per_row = block_size(len(rows), MOST_CELLS)
    caption = (
        f"R of client and client (FB-NLL, Eq. 6), in the order of the dendrogram ({found.linkage} "
        "linkage); the margin shows the found groups."
    )
    if not is_square:
        caption = (
            f"R of every client, sorted by group, and the {len(columns)} landmarks, in the order "
            "of their dendrogram; the margin shows the found groups."
        )
    if per_row > 1:
        caption += f" Averaged over blocks of {per_row} clients."
    return Figure(
        name="similarity",
        title=f"Similarity of clients: {run.label}",
        caption=caption,
        run=run.label,
        notes=_notes(run, found),
        drawing=Heatmap(
            values=values,
            row_names=block_names(rows, MOST_CELLS),
            column_names=block_names(columns, MOST_CELLS),
            value_label="similarity R",
            row_label="client",
            column_label="client" if is_square else "landmark",
            bars=[int(g) for g in found.groups[rows[::per_row]]],
        ),
    )


def _notes(run: Run, found: _Grouping) -> dict[str, Any]:
    from sklearn.metrics import silhouette_score

    notes: dict[str, Any] = {"groups": len(np.unique(found.groups)), "linkage": found.linkage}
    rank = run.last("rank")
    if rank is not None:
        notes["eigenvectors"] = rank
    own = found.groups[found.clients]
    if 2 <= len(np.unique(own)) < len(own):  # else it is not defined
        score = silhouette_score(found.distances, own, metric="precomputed")
        notes["silhouette"] = round(float(score), 4)
    ari = next((r.ari for r in run.records if r.ari is not None), None)
    if ari is not None:
        notes["ARI"] = round(float(ari), 4)
    return notes


# ---- the dendrogram ------------------------------------------------------------------------


def _dendrogram_figure(run: Run, found: _Grouping) -> Figure:
    from scipy.cluster import hierarchy

    figure = Figure(
        name="dendrogram",
        title=f"Dendrogram: {run.label}",
        caption=(
            f"Merges of {'clients' if len(found.clients) == len(found.groups) else 'landmarks'} "
            f"by the distance 1 - R ({found.linkage} linkage); the dashed line is the cut that "
            "leaves the found groups."
        ),
        run=run.label,
        notes=_notes(run, found),
    )
    if not len(found.tree):
        return replace(figure, run="", notes={}, missing="One client has no merges.")
    count = len(found.clients)
    leaves = max(MOST_LEAVES, len(np.unique(found.groups)))
    truncated = count > leaves
    plan = hierarchy.dendrogram(
        found.tree, no_plot=True, truncate_mode="lastp" if truncated else None, p=leaves
    )
    members = _members(found.tree, count, plan["leaves"])
    own = found.groups[found.clients]
    groups = []
    for m in members:
        values, counts = np.unique(own[m], return_counts=True)
        groups.append(int(values[counts.argmax()]))
    names = [
        str(found.clients[m[0]])
        if len(m) == 1
        else f"{len(m)} clients from {found.clients[m].min()}"
        for m in members
    ]
    note = f" Only the last {leaves} branches are shown." if truncated else ""
    drawing = Dendrogram(plan["icoord"], plan["dcoord"], names, groups, _cut(found))
    return replace(figure, caption=figure.caption + note, drawing=drawing)


def _members(tree: np.ndarray, count: int, nodes: Sequence[int]) -> list[np.ndarray]:
    """Return the leaves below nodes of a merge table, without recursion."""
    found = []
    for node in nodes:
        below, open_nodes = [], [int(node)]
        while open_nodes:
            at = open_nodes.pop()
            if at < count:
                below.append(at)
            else:
                open_nodes += [int(tree[at - count, 0]), int(tree[at - count, 1])]
        found.append(np.array(sorted(below)))
    return found


def _cut(found: _Grouping) -> float | None:
    """Return the height halfway between the last merge inside groups and the first across."""
    heights = found.tree[:, 2]
    merges = len(found.clients) - len(np.unique(found.groups[found.clients]))
    if merges >= len(heights):
        return None
    below = heights[merges - 1] if merges else 0.0
    return float((below + heights[merges]) / 2)

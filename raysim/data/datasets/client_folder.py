"""A folder of clients' own data: who is in it, their labels, and their tasks; images come later.

Either ``<client>.npz`` (images (N, H, W) or (N, H, W, C), labels (N,), and true_labels (N,) where
the truth is known) or ``<client>/<class>/*.png``. Beside them ``test`` and ``server``, laid out the
same way, and ``tasks.yaml``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.data.datasets.dataset import by_number
from raysim.data.datasets.image_folder import class_folders, photos_below
from raysim.errors import DataError

TEST, SERVER, TASKS = "test", "server", "tasks.yaml"
LAYOUT = "<client>.npz with images and labels, or <client>/<class>/*.png; test.npz or test/<class>/"


@dataclass(frozen=True, eq=False)
class Part:
    """The data of one client, the test set, or the server's clean set; without the images."""

    name: str
    path: Path
    labels: np.ndarray
    """As given, (N,) int64."""
    true: np.ndarray | None = None
    photos: tuple[Path, ...] = ()
    """Image files in the order of the labels; empty for an npz."""


@dataclass(frozen=True, eq=False)
class ClientFolder:
    """Everything below the folder, in order of the clients' names."""

    root: Path
    clients: tuple[Part, ...]
    test: Part | None
    server: Part | None
    class_names: tuple[str, ...]
    tasks: Tasks
    task_of: np.ndarray
    knows_labels: bool
    """Whether every client came with true labels."""
    knows_tasks: bool
    """Whether tasks.yaml or true labels say the tasks; else they come from the given labels."""

    @property
    def sources(self) -> list[Path]:
        parts = [*self.clients, *(part for part in (self.test, self.server) if part)]
        tasks = [self.root / TASKS] if (self.root / TASKS).is_file() else []
        return [path for part in parts for path in part.photos or (part.path,)] + tasks


def read_client_folder(root: Path) -> ClientFolder:
    """Return what ``root`` holds, checked; images are not opened."""
    if not root.is_dir():
        raise DataError(f"data.root {root} must be a folder with clients' data, got none; set it")
    files = sorted(p for p in root.iterdir() if p.suffix == ".npz")
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if bool(files) == bool(folders):
        found = f"{len(files)} npz files and {len(folders)} folders" if files else "neither"
        raise DataError(f"{root} must hold {LAYOUT}, got {found}; use one of the two layouts")
    if files:
        parts = {path.stem: _npz_part(path) for path in files}
        every = [a for part in parts.values() for a in (part.labels, part.true) if a is not None]
        names = tuple(str(label) for label in range(max(int(a.max()) for a in every) + 1))
    else:
        named = {folder: class_folders(folder) for folder in folders}
        names = tuple(sorted({name for own in named.values() for name in own}, key=by_number))
        parts = {folder.name: _photo_part(folder, own, names) for folder, own in named.items()}
    test, server = parts.pop(TEST, None), parts.pop(SERVER, None)
    clients = tuple(parts[name] for name in sorted(parts, key=by_number))
    if not clients:
        raise DataError(
            f"{root} must hold at least one client, got only {TEST} or {SERVER}; add clients"
        )
    known = [part.true is not None for part in clients]
    if any(known) and not all(known):
        lacking = clients[known.index(False)].path
        _refuse(lacking, "must hold true_labels as other clients do", "none", "add or remove all")
    tasks, task_of, is_told = _tasks(root, clients, names)
    return ClientFolder(
        root=root,
        clients=clients,
        test=test,
        server=server,
        class_names=names,
        tasks=tasks,
        task_of=task_of,
        knows_labels=all(known),
        knows_tasks=is_told or all(known),
    )


def _npz_part(path: Path) -> Part:
    arrays = read_npz(path, ("labels", "true_labels"))
    if "labels" not in arrays:
        _refuse(path, "must hold images and labels", "no labels", "add labels=...")
    labels, true = (_checked_labels(path, arrays, name) for name in ("labels", "true_labels"))
    assert labels is not None
    if true is not None and true.shape != labels.shape:
        found = f"{len(true)} for {len(labels)}"
        _refuse(path, "must hold one true label per label", found, "write them from one list")
    return Part(path.stem, path, labels, true)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return those of the arrays ``names`` that a file holds; others are not read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names if name in archive.files}
    except (OSError, EOFError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} must be an npz file of plain arrays, got: {error}; write it with "
            "np.savez(path, images=..., labels=...)"
        ) from error


def _checked_labels(path: Path, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray | None:
    labels = arrays.get(name)
    if labels is None:
        return None
    if labels.ndim != 1 or not len(labels) or labels.dtype.kind not in "iu":
        found = f"{labels.dtype} {labels.shape}"
        _refuse(path, f"must hold {name} as class numbers (N,)", found, "number the classes from 0")
    if labels.min() < 0:
        _refuse(path, f"must hold {name} of 0 or more", str(labels.min()), "number them from 0")
    return labels.astype(np.int64)


def _photo_part(folder: Path, own: Sequence[str], names: Sequence[str]) -> Part:
    photos: list[Path] = []
    labels: list[int] = []
    for name in sorted(own, key=by_number):
        own_photos = photos_below(folder / name)
        photos += own_photos
        labels += [names.index(name)] * len(own_photos)
    if not photos:
        _refuse(folder, "must hold photos in <class>/", "none", "add some or remove the folder")
    return Part(folder.name, folder, np.array(labels, dtype=np.int64), photos=tuple(photos))


def _tasks(
    root: Path, clients: Sequence[Part], names: Sequence[str]
) -> tuple[Tasks, np.ndarray, bool]:
    """Return the tasks, the task of every client, and whether a file names them."""
    if (root / TASKS).is_file():
        return *_named_tasks(root / TASKS, clients, names), True
    own = [
        tuple(np.unique(part.labels if part.true is None else part.true).tolist())
        for part in clients
    ]
    tasks = tuple(dict.fromkeys(own))
    return tasks, np.array([tasks.index(classes) for classes in own], dtype=np.int64), False


def _named_tasks(
    path: Path, clients: Sequence[Part], names: Sequence[str]
) -> tuple[Tasks, np.ndarray]:
    ids = {part.name: k for k, part in enumerate(clients)}
    task_of = np.full(len(clients), -1, dtype=np.int64)
    tasks = []
    for m, (task, content) in enumerate(_read_tasks(path).items()):
        tasks.append(tuple(sorted(_class(path, c, names) for c in content["classes"])))
        for client in map(str, content["clients"]):
            if client not in ids or task_of[ids[client]] >= 0:
                why = "unknown client" if client not in ids else "client of two tasks"
                _refuse(path, f"must name every client once, task {task}", f"{why} {client}", "fix")
            task_of[ids[client]] = m
    left = [clients[k].name for k in np.flatnonzero(task_of < 0).tolist()]
    if left:
        _refuse(path, "must name the task of every client", f"none for {left[0]}", "add it")
    return tuple(tasks), task_of


def _read_tasks(path: Path) -> dict[str, Any]:
    import yaml

    form = "must be `<task>: {classes: [...], clients: [...]}` per task"
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise DataError(f"{path} {form}, got: {error}; correct it") from error
    tasks = content if isinstance(content, dict) and content else {}
    lists = [
        isinstance(task, dict) and isinstance(task.get(key), list) and task[key]
        for task in tasks.values()
        for key in ("classes", "clients")
    ]
    if not lists or not all(lists):
        _refuse(path, form, repr(content)[:60], "correct it")
    return tasks


def _class(path: Path, label: Any, names: Sequence[str]) -> int:
    """Return the number of a class that is written as a number or as a name."""
    if str(label) in names:
        return list(names).index(str(label))
    _refuse(path, f"must name classes of {names[0]} to {names[-1]}", repr(label), "correct it")


def _refuse(path: Path, rule: str, found: str, do: str) -> NoReturn:
    raise DataError(f"{path} {rule}, got {found}; {do}")

"""A folder of clients' own data: who is in it, their labels, and their tasks; images come later.

Either ``<client>.npz`` (images (N, H, W) or (N, H, W, C), labels (N,), and true_labels (N,) where
the truth is known) or ``<client>/<class>/*.png``. Beside them ``test`` and ``server``, laid out the
same way, and ``tasks.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from raysim.data.datasets.classes import Tasks
from raysim.data.datasets.dataset import by_number
from raysim.data.datasets.image_folder import class_folders
from raysim.data.datasets.photos import photos_by_class
from raysim.errors import DataError
from raysim.storage.labelled import as_labels, read_members

TEST, SERVER, TASKS = "test", "server", "tasks.yaml"
DO = "write it with np.savez(path, images=..., labels=class numbers from 0)"
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

    @property
    def truth(self) -> np.ndarray:
        """True labels; without them the given ones stand in and are scored nowhere."""
        return self.labels if self.true is None else self.true

    @property
    def rows(self) -> np.ndarray:
        return np.arange(len(self.labels))


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
        own = {name for folder in folders for name in class_folders(folder)}
        names = tuple(sorted(own, key=by_number))
        parts = {folder.name: _photo_part(folder, names) for folder in folders}
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
    is_told = (root / TASKS).is_file()
    tasks, task_of = _named_tasks(root / TASKS, clients, names) if is_told else _own_tasks(clients)
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
    arrays = read_members(path, ("labels",), DO, perhaps=("true_labels",))
    labels = as_labels(arrays["labels"], f"{path}: labels", DO)
    true = arrays.get("true_labels")
    if true is not None:
        true = as_labels(true, f"{path}: true_labels", DO, count=len(labels))
    return Part(path.stem, path, labels, true)


def _photo_part(folder: Path, names: Sequence[str]) -> Part:
    photos, labels = photos_by_class(folder, names)
    if not photos:
        _refuse(folder, "must hold photos in <class>/", "none", "add some or remove the folder")
    return Part(folder.name, folder, np.array(labels, dtype=np.int64), photos=tuple(photos))


def _own_tasks(clients: Sequence[Part]) -> tuple[Tasks, np.ndarray]:
    """Return every set of classes that a client has as a task."""
    own = [tuple(np.unique(part.truth).tolist()) for part in clients]
    tasks = tuple(dict.fromkeys(own))
    return tasks, np.array([tasks.index(classes) for classes in own], dtype=np.int64)


def _named_tasks(
    path: Path, clients: Sequence[Part], names: Sequence[str]
) -> tuple[Tasks, np.ndarray]:
    ids = {part.name: k for k, part in enumerate(clients)}
    task_of = np.full(len(clients), -1, dtype=np.int64)
    tasks = []
    for m, (task, content) in enumerate(_read_tasks(path).items()):
        classes = list(map(str, content["classes"]))  # written as numbers or as names
        strange = [label for label in classes if label not in names]
        if strange:
            rule = f"must name classes of {names[0]} to {names[-1]}"
            _refuse(path, rule, strange[0], "correct it")
        tasks.append(tuple(sorted(names.index(label) for label in classes)))
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
    except (OSError, ValueError, yaml.YAMLError) as error:
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


def _refuse(path: Path, rule: str, found: str, do: str) -> NoReturn:
    raise DataError(f"{path} {rule}, got {found}; {do}")

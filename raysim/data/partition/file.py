"""Partitions that are not drawn: of a split file, or of a user's own files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from raysim.data.partition.split import PARTITIONS, Partition, Split, TaskTable, check_split
from raysim.errors import ConfigError, DataError
from raysim.settings import settings

if TYPE_CHECKING:
    from raysim.data.datasets.client_folder import ClientFolder
    from raysim.data.split_file import StoredSplit


@PARTITIONS.register("file")
@settings
class FilePartition(Partition):
    """The partition of a split file (``raysim.data.split_file``), server images included."""

    path: str

    @property
    def clients(self) -> int:
        return len(self._read().split.clients)

    @property
    def groups(self) -> int:
        return len(self._read().split.tasks)

    def make_split(
        self,
        labels: np.ndarray,
        *,
        classes: int,
        task_table: TaskTable,
        per_class: int,
        rng: np.random.Generator,
        digest: str = "",
    ) -> Split:
        """Return the stored split if it was made from this dataset; nothing is drawn."""
        stored = self._read()
        if stored.digest != digest:
            raise DataError(
                f"data.partition.path: split file {self.path} was made from "
                f"{stored.dataset!r} with digest {stored.digest!r}, got a dataset with digest "
                f"{digest!r}; use the dataset it was made from, or export the split again"
            )
        unknown = [c for task in stored.split.tasks for c in task if not 0 <= c < classes]
        if unknown:
            raise DataError(
                f"data.partition.path: split file {self.path} names class {unknown[0]}, got a "
                f"dataset with the classes 0 to {classes - 1}; export the split again"
            )
        check_split(stored.split, labels)
        counts = np.bincount(labels[stored.split.server_ids], minlength=classes)
        wrong = np.flatnonzero(counts != per_class)
        if wrong.size:
            raise ConfigError(
                f"data.server.per_class must be what split file {self.path} holds, got "
                f"{per_class}, but class {wrong[0]} has {counts[wrong[0]]} clean images there; "
                "set per_class to that, or export the split again"
            )
        return stored.split

    def _read(self) -> StoredSplit:
        from raysim.data.split_file import read_split  # split_file imports Split from here

        return read_split(self.path, setting="data.partition.path")


@PARTITIONS.register("given")
@settings
class GivenPartition(Partition):
    """The clients of dataset ``client_files``, in order of their names."""

    root: str | None = None
    """Folder of the clients; null: data.root."""

    @property
    def clients(self) -> int:
        return len(self._read().clients)

    @property
    def groups(self) -> int:
        """Number of tasks: those of tasks.yaml, else of different sets of classes."""
        return len(self._read().tasks)

    def make_split(self, *_: object, **__: object) -> NoReturn:
        """Refuse: ``ClientFiles.given`` says who holds what."""
        raise ConfigError("data.partition given needs data.dataset client_files; set both")

    def _read(self) -> ClientFolder:
        # imported here, since client_files imports Split from this package
        from raysim.data.datasets.client_files import ClientFiles
        from raysim.data.datasets.client_folder import read_client_folder

        root = None if self.root is None else Path(self.root)
        return read_client_folder(ClientFiles().folder(root))

"""The partition that a user's own files are: who holds what is not drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from raysim.data.partition.split import PARTITIONS
from raysim.errors import ConfigError
from raysim.settings import settings

if TYPE_CHECKING:
    from raysim.data.datasets.client_folder import ClientFolder


@PARTITIONS.register("given")
@settings
class GivenPartition:
    """The clients of dataset ``client_files``, in order of their names."""

    root: str | None = None
    """Folder of the clients; null: data.root."""

    @property
    def clients(self) -> int:
        """Number of clients in the folder."""
        return len(self._read().clients)

    @property
    def groups(self) -> int:
        """Number of tasks: those of tasks.yaml, else of different sets of classes."""
        return len(self._read().tasks)

    def make_split(self, *_: object, **__: object) -> NoReturn:
        """Refuse: ``ClientFiles.given`` says who holds what."""
        raise ConfigError("data.partition given needs data.dataset client_files; set both")

    def _read(self) -> ClientFolder:
        from raysim.data.datasets.client_files import (
            ClientFiles,  # it imports Split from this package
        )
        from raysim.data.datasets.client_folder import read_client_folder

        root = None if self.root is None else Path(self.root)
        return read_client_folder(ClientFiles().folder(root))

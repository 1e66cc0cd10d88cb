"""Where run directories are."""

from __future__ import annotations

from raysim.errors import DataError
from raysim.runtime.storage import Storage, open_storage, reason


def find_runs(where: str, mark: str = "config.yaml") -> list[Storage]:
    """Return the run directory at a path or URL, or every one below it; none gives an empty list.

    ``mark`` is the file that makes a folder a run directory.
    """
    try:
        storage = open_storage(where)
        if storage.exists(mark):
            return [storage]
        return [open_storage(root) for root in storage.find(mark)]
    except OSError as wrong:
        raise DataError(f"{where} cannot be read ({reason(wrong)}); make it reachable") from wrong

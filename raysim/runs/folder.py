"""The run directory, a folder or a URL; every file in it is complete or absent.

``config.yaml`` (the complete config), ``environment.json`` (versions, machine, actors),
``rounds.jsonl`` (one record per round), ``result.json`` (only when the run is finished),
``checkpoint/`` (the newest commits), ``artifacts/`` (one-time arrays), ``models/`` (final models),
``tensorboard/`` and ``mlflow.json`` (with ``track``), ``run.log``, ``events.jsonl`` and ``.lock``
(empty; it stays).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import yaml

from raysim.errors import CheckpointError, DataError, OutputError
from raysim.runs.record import RoundRecord, format_records, parse_records
from raysim.storage.files import PART, read_array, reason
from raysim.storage.objects import LOCK, Lock, Place, Storage, absolute, open_storage, place, remedy

log = logging.getLogger(__name__)
LOGS = ("run.log", "events.jsonl")
OWN = ("config.yaml", "environment.json", "rounds.jsonl", "result.json", "mlflow.json", *LOGS)
OWN_FOLDERS = ("checkpoint", "artifacts", "models", "tensorboard")
LOCK_WAIT_S = 90.0
"""How long ``resume="auto"`` waits for the lock: that of a process that died is soon stale."""


class RunFolder:
    """One run's directory, locked while the run lives."""

    def __init__(self, path: Place) -> None:
        self.path: Place = place(path) if isinstance(path, str) else path
        self._lock: Lock | None = None
        self._asked: tuple[bool, bool] | None = None
        self._lock_wait_s = 0.0

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.path)

    @property
    def root(self) -> str:
        """The directory by its absolute name: actors have working directories of their own."""
        return absolute(self.path)

    @property
    def checkpoint(self) -> str:
        return f"{self.root}/checkpoint"

    @property
    def is_finished(self) -> bool:
        return self.storage.exists("result.json")

    @property
    def is_started(self) -> bool:
        return self.storage.exists("config.yaml")

    def check(self, *, resume: bool | Literal["auto"], force: bool) -> bool:
        """Refuse what would lose or mix results, and return whether to go on with a run.

        Nothing is changed. ``resume="auto"`` goes on where a run has begun, and begins elsewhere.
        """
        try:
            if resume == "auto":
                resume, self._lock_wait_s = self.is_started, LOCK_WAIT_S
            self._asked = (resume, force)
            self._check_state(resume=resume, force=force)
        except OSError as wrong:
            raise OutputError(
                f"output {self.path} cannot be used ({reason(wrong)}); choose another"
            ) from wrong
        try:
            self.storage.check_writable()
        except OSError as wrong:
            raise OutputError(
                f"output {self.path} cannot be written ({reason(wrong)}); make it writable or "
                "choose another output"
            ) from wrong
        return resume

    def _check_state(self, *, resume: bool, force: bool) -> None:
        if isinstance(self.path, Path) and self.path.exists() and not self.path.is_dir():
            raise OutputError(f"output {self.path} is a file; choose another output folder")
        if self.is_finished and not (resume or force):
            raise OutputError(
                f"output {self.path} holds a finished run; use --force to replace it, or another "
                "output, name or seed"
            )
        if self.is_started and not self.is_finished and not (resume or force):
            raise OutputError(
                f"output {self.path} holds an unfinished run; use --resume to go on with it or "
                "--force to start anew"
            )
        if not self.is_started and self._strangers():
            raise OutputError(
                f"output {self.path} is not empty and not a run directory; choose another output"
            )

    def open(self, *, force: bool) -> None:
        """Create and lock the directory; ``force`` removes the files of an earlier run first."""
        with self._writing("the run directory"):
            self._lock = self._locked()
            try:
                if self._asked is not None:  # another process may have been faster than our start
                    self._check_state(resume=self._asked[0], force=self._asked[1])
                self._clear(everything=force)
            except BaseException:
                self.close()
                raise

    def _locked(self) -> Lock:
        """Lock the directory; wait where the process that an attempt replaces may hold it."""
        deadline, has_told = time.monotonic() + self._lock_wait_s, False
        while True:
            try:
                return self.storage.lock()
            except OutputError as held:
                if time.monotonic() >= deadline:
                    raise
                if not has_told:
                    log.warning("%s; trying for %.0f s", held, self._lock_wait_s)
                has_told = True
                time.sleep(2.0)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, name: str, content: str | Mapping[str, Any]) -> None:
        """Write a file completely or not at all."""
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        with self._writing(name):
            self.storage.write(name, text.encode())

    def read(self, name: str) -> dict[str, Any]:
        with self._reading(name):
            content: dict[str, Any] = json.loads(self.storage.read(name))
        return content

    def saved_config(self) -> dict[str, Any]:
        try:
            with self._reading("config.yaml"):
                content = yaml.safe_load(self.storage.read("config.yaml"))
        except (yaml.YAMLError, UnicodeDecodeError) as wrong:
            raise CheckpointError(
                f"{self.path}/config.yaml is damaged ({wrong}); start anew with --force, or "
                "restore it from a copy"
            ) from wrong
        return dict(content or {})

    def artifact(self, name: str, array: np.ndarray) -> None:
        """Write a one-time array."""

        def fill(file: IO[bytes]) -> None:
            np.save(file, array, allow_pickle=False)

        with self._writing(f"artifacts/{name}.npy"):
            self.storage.write(f"artifacts/{name}.npy", fill)

    def array(self, name: str) -> np.ndarray:
        with self._reading(f"artifacts/{name}.npy"):
            content = self.storage.read(f"artifacts/{name}.npy")
        where = f"{self.path}/artifacts/{name}.npy"
        return read_array(
            io.BytesIO(content), lambda error: f"{where} is damaged ({error}); run it again"
        )

    def append(self, record: RoundRecord) -> None:
        with self._writing("rounds.jsonl"):
            if self._lock is not None:
                self._lock.check()
            self.storage.append("rounds.jsonl", format_records([record]).encode())

    def records(self, count: int | None = None) -> list[RoundRecord]:
        """Return the first ``count`` records (default all)."""
        try:
            records, damaged = self.readable_records()
            wrong = next(
                (why for line, why in damaged.items() if count is None or line <= count), None
            )
        except FileNotFoundError:
            return []
        except UnicodeDecodeError as error:
            wrong = str(error)
        if wrong is not None:
            raise CheckpointError(
                f"{self.path}/rounds.jsonl is damaged ({wrong}); start anew with --force, or "
                "restore it from a copy"
            )
        return records[:count]

    def readable_records(self) -> tuple[list[RoundRecord], dict[int, str]]:
        """Return the records that can be read, and by number the damaged lines and why."""
        with self._reading("rounds.jsonl"):
            return parse_records(self.storage.read("rounds.jsonl").decode())

    def keep_records(self, count: int) -> None:
        """Drop records of rounds that were not committed."""
        self.write("rounds.jsonl", format_records(self.records(count)))

    def _clear(self, *, everything: bool) -> None:
        """Remove what a crashed write left behind, or everything a run writes."""
        for name in self.storage.names():
            if _is_part(name) or (everything and name in OWN):
                self.storage.remove(name)
            elif everything and name in OWN_FOLDERS:
                self.storage.remove_folder(name)

    def _strangers(self) -> list[str]:
        """Everything but what a start leaves that died before its config was written."""
        return [n for n in self.storage.names() if n not in (LOCK, *LOGS) and not _is_part(n)]

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as wrong:
            raise OutputError(
                f"{what} of {self.path} cannot be read ({reason(wrong)}); make it reachable, then "
                "go on with --resume"
            ) from wrong

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as wrong:
            raise OutputError(
                f"{what} could not be written to {self.path} ({reason(wrong)}); "
                f"{remedy(wrong, str(self.path))}, then go on with --resume"
            ) from wrong


def _is_part(name: str) -> bool:
    """Whether the file may be what a crashed write of ours left behind."""
    return name.startswith(tuple(f".{own}." for own in OWN)) and name.endswith(PART)


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

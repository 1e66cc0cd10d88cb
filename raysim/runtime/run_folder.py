"""The run directory; every file in it is complete or absent.

``config.yaml`` (the complete config), ``environment.json`` (versions, machine, actors),
``rounds.jsonl`` (one record per round), ``result.json`` (only when the run is finished),
``checkpoint/`` (the newest commits), ``artifacts/`` (one-time arrays), ``run.log``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from raysim.errors import CheckpointError, OutputError

OWN = ("config.yaml", "environment.json", "rounds.jsonl", "result.json", "run.log")
OWN_FOLDERS = ("checkpoint", "artifacts")
TIMES = ("seconds", "restarts")
"""Entries of a record that may differ between two runs with equal bits."""


class RunFolder:
    """One run's directory, locked while the run lives."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None
        self._asked: tuple[bool, bool] | None = None

    @property
    def checkpoint(self) -> str:
        """Folder of the commits; absolute, since actors have working directories of their own."""
        return str(self.path.absolute() / "checkpoint")

    @property
    def is_finished(self) -> bool:
        """Whether the run ended with a result."""
        return (self.path / "result.json").is_file()

    @property
    def is_started(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.yaml").is_file()

    def check(self, *, resume: bool, force: bool) -> None:
        """Refuse what would lose or mix results; touches nothing."""
        self._asked = (resume, force)
        try:
            self._check_state(resume=resume, force=force)
        except OSError as wrong:
            raise OutputError(
                f"output {self.path} cannot be used ({wrong.strerror or wrong}); choose another"
            ) from wrong
        self._check_writable()

    def _check_state(self, *, resume: bool, force: bool) -> None:
        if self.path.exists() and not self.path.is_dir():
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
        if self.path.exists() and not self.is_started and any(self._strangers()):
            raise OutputError(
                f"output {self.path} is not empty and not a run directory; choose another output"
            )

    def open(self, *, force: bool) -> None:
        """Create and lock the directory; ``force`` removes the files of an earlier run first."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            self._lock = None
            raise OutputError(
                f"output {self.path} is in use by another process; wait for it or choose "
                f"another output"
            ) from None
        if self._asked is not None:  # another process may have been faster than our start
            try:
                self._check_state(resume=self._asked[0], force=self._asked[1])
            except OutputError:
                self.close()
                raise
        if force:
            for item in self._own():
                shutil.rmtree(item) if item.is_dir() else item.unlink()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            (self.path / ".lock").unlink(missing_ok=True)
            self._lock = None

    def write(self, name: str, content: str | Mapping[str, Any]) -> None:
        """Write a file completely or not at all."""
        text = content if isinstance(content, str) else json.dumps(content, indent=2) + "\n"
        part = self.path / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self.path / name)

    def read(self, name: str) -> dict[str, Any]:
        """Return a JSON file of the directory."""
        content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        return content

    def artifact(self, name: str, array: np.ndarray) -> None:
        """Write a one-time array."""
        folder = self.path / "artifacts"
        folder.mkdir(exist_ok=True)
        part = folder / f".{name}.part"
        with part.open("wb") as file:
            np.save(file, array, allow_pickle=False)
        part.replace(folder / f"{name}.npy")

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one round's record."""
        with (self.path / "rounds.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return the first ``count`` records (default all)."""
        path = self.path / "rounds.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text.split("\n")[:-1]  # what has no newline was torn while it was written
        try:
            return [json.loads(line) for line in lines[:count]]
        except ValueError as wrong:
            raise CheckpointError(
                f"{path} is damaged ({wrong}); start anew with --force, or restore it from a copy"
            ) from wrong

    def keep_records(self, count: int) -> None:
        """Drop records of rounds that were not committed."""
        self.write("rounds.jsonl", "".join(json.dumps(r) + "\n" for r in self.records(count)))

    def _own(self) -> list[Path]:
        """Files and folders that a run writes."""
        names = {*OWN, *OWN_FOLDERS, *(f".{name}.part" for name in OWN)}
        return [p for p in self.path.iterdir() if p.name in names]

    def _strangers(self) -> list[Path]:
        """Everything but what a start leaves that died before its config was written."""
        left = {".lock", "run.log", *(f".{name}.part" for name in OWN)}
        return [p for p in self.path.iterdir() if p.name not in left]

    def _check_writable(self) -> None:
        """Try it: permission bits do not tell the truth for root or on network drives."""
        parent = self.path
        while not parent.exists():
            parent = parent.parent
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as wrong:
            raise OutputError(
                f"output {self.path} cannot be written ({wrong.strerror or wrong}); make "
                f"{parent} writable or choose another output"
            ) from wrong


def records_digest(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the sha256 of the records without their times."""
    plain = [{k: v for k, v in r.items() if k not in TIMES} for r in records]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

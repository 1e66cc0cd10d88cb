"""The run directory, a folder or a URL; every file in it is complete or absent.

``config.yaml`` (the complete config), ``environment.json`` (versions, machine, actors),
``rounds.jsonl`` (one record per round), ``result.json`` (only when the run is finished),
``checksums.json`` (what readers compare the files with),
``checkpoint/`` (the newest commits), ``artifacts/`` (one-time arrays), ``models/`` (final models),
``tensorboard/`` and ``mlflow.json`` (with ``track``), ``run.log``, ``events.jsonl`` and ``.lock``
(empty; it stays).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import yaml

from raysim.errors import CheckpointError, DataError, OutputError, OutputLost
from raysim.runs.checksums import (
    CHECKSUMS,
    RECORDS,
    Checksums,
    difference,
    read_checked,
    sha256,
    stored,
)
from raysim.runs.record import RoundRecord, format_records, parse_records
from raysim.storage.files import PART, json_text, read_array, reason
from raysim.storage.locks import LOCK, Lock
from raysim.storage.objects import (
    Place,
    Storage,
    absolute,
    checked_name,
    open_storage,
    place,
    remedy,
)

log = logging.getLogger(__name__)
LOGS = ("run.log", "events.jsonl")
OWN = (
    *("config.yaml", "environment.json", RECORDS, "result.json", CHECKSUMS, "mlflow.json"),
    *LOGS,
)
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
        self._sums: Checksums | None = None
        self._arrays: dict[str, np.ndarray] = {}
        """Artifacts of the round that goes on."""

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
                self._sums = None
            except OutputError as wrong:
                self.close()
                if self._lock_wait_s:  # resume="auto": what came meanwhile can be gone on with
                    raise OutputLost(f"{wrong}; start again to go on with it") from wrong
                raise
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

    def check_lock(self) -> None:
        """Raise ``OutputLost`` if this is not the directory any more that the run began in."""
        if self._lock is not None:
            self._lock.check()

    def check_config(self) -> None:
        """Raise ``OutputLost`` if the config is gone, without which nobody can go on."""
        self.check_lock()
        self._refuse_lost({"config.yaml"} & self._checksums.written)

    def check_files(self) -> None:
        """Ask now whether the directory is still ours and has every file that was written to it."""
        if self._lock is not None:
            with self._reading("the lock"):
                self._lock.check(at_once=True)
        self._refuse_lost(self._checksums.written)

    def _refuse_lost(self, names: Collection[str]) -> None:
        with self._reading("files"):
            gone = [name for name in sorted(names) if not self.storage.exists(name)]
        if gone:
            raise OutputLost(
                f"output {self.path}: {', '.join(gone)} was deleted while this run wrote to it; "
                "the rest was left as it is; put it back and go on with --resume, or start anew"
            )

    def write(self, name: str, content: str | Mapping[str, Any]) -> None:
        """Write a file completely or not at all."""
        text = content if isinstance(content, str) else json_text(content, indent=2) + "\n"
        with self._writing(name), self._checksums.replacing({name: sha256(text.encode())}):
            self.storage.write(name, text.encode())

    def read(self, name: str) -> dict[str, Any]:
        content, wrong = self._content(name)
        if wrong:
            raise DataError(
                f"{self.path}/{name} is damaged ({wrong}); restore it from a copy, or run it again"
            )
        try:
            plain: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise DataError(f"{self.path}/{name} is not readable: {error}; run it again") from error
        return plain

    def saved_config(self) -> dict[str, Any]:
        text, wrong = self._content("config.yaml")
        plain = None
        if not wrong:
            try:
                plain = yaml.safe_load(text)
                wrong = "" if plain and isinstance(plain, dict) else "it holds no settings"
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                wrong = str(error)
        if wrong:
            raise self._damaged("config.yaml", wrong)
        return dict(plain or {})

    def artifact(self, name: str, array: np.ndarray) -> None:
        """Keep an array for ``write_artifacts``, which every ``append`` calls first."""
        self._arrays[checked_name(name)] = array

    def write_artifacts(self) -> None:
        """Write the arrays that were kept, each completely or not at all."""
        arrays = {f"artifacts/{name}.npy": array for name, array in self._arrays.items()}
        digests = {}
        for name, array in arrays.items():
            digest = hashlib.sha256()
            np.save(SimpleNamespace(write=digest.update), array, allow_pickle=False)
            digests[name] = digest.hexdigest()
        if arrays:
            with self._writing("artifacts"), self._checksums.replacing(digests):
                for name, array in arrays.items():
                    fill = partial(np.save, arr=array, allow_pickle=False)
                    self.storage.write(name, fill)
        self._arrays = {}

    def array(self, name: str) -> np.ndarray:
        content, wrong = self._content(f"artifacts/{name}.npy")

        def say(error: str) -> str:
            return f"{self.path}/artifacts/{name}.npy is damaged ({error}); run it again"

        if wrong:
            raise DataError(say(wrong))
        return read_array(io.BytesIO(content), say)

    def append(self, record: RoundRecord) -> None:
        """Write the round's artifacts and add its record."""
        self.write_artifacts()
        line, sums = format_records([record]).encode(), self._checksums
        with self._writing(RECORDS):
            self.storage.append(RECORDS, line)
        sums.add_records(line)

    def seal(self) -> None:
        """Bring the checksums of all that was written to the disk."""
        with self._writing(CHECKSUMS):
            self._checksums.write()

    def records(self, count: int | None = None) -> list[RoundRecord]:
        """Return the first ``count`` records (default all)."""
        records: list[RoundRecord] = []
        try:
            content, wrong = self._content(RECORDS)
            if not wrong:
                records, damaged = parse_records(content.decode())
                lines = damaged if count is None else range(1, count + 1)
                wrong = next((damaged[line] for line in lines if line in damaged), "")
        except FileNotFoundError:
            return []
        except UnicodeDecodeError as error:
            wrong = str(error)
        if wrong:
            raise self._damaged(RECORDS, wrong)
        return records[:count]

    def verify(self) -> None:
        """Compare every file with its checksum, and raise for the first that differs."""
        for name in self._checksums.entries:
            with contextlib.suppress(FileNotFoundError):
                wrong = self._content(name)[1]
                if wrong:
                    raise self._damaged(name, wrong)

    def keep_records(self, count: int) -> None:
        """Drop records of rounds that were not committed."""
        kept = format_records(self.records(count)).encode()
        with self._writing(RECORDS):
            self._checksums.begin_records(kept)
            self._checksums.write()  # covers what is there now as well: that begins with ``kept``
            self.storage.write(RECORDS, kept)

    @property
    def _checksums(self) -> Checksums:
        """The checksums of what is there, read once before they are first changed."""
        if self._sums is None:
            try:
                self._sums = Checksums(self.storage, stored(self.storage))
            except ValueError as wrong:
                raise self._damaged(CHECKSUMS, str(wrong)) from wrong
            if self.storage.exists(RECORDS):
                self._sums.begin_records(self.storage.read(RECORDS))
        return self._sums

    def _content(self, name: str) -> tuple[bytes, str]:
        """Return a file's content and what is wrong with it, if anything is."""
        entry = None if self._lock is None or self._sums is None else self._sums.entries.get(name)
        with self._reading(name):
            try:
                content, wrong = read_checked(self.storage, name)
            except FileNotFoundError:
                if entry is None or "bytes" not in entry:
                    raise
                content, wrong = b"", "it is gone"
        return content, wrong or difference(entry, content)

    def _damaged(self, name: str, wrong: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}/{name} is damaged ({wrong}); start anew with --force, or restore it "
            "from a copy"
        )

    def _clear(self, *, everything: bool) -> None:
        """Remove what a crashed write left behind, or everything a run writes."""
        for name in self.storage.names():
            if _is_part(name) or (everything and name in OWN):
                self.storage.remove(name)
            elif everything and name in OWN_FOLDERS:
                self.storage.remove_folder(name)

    def _strangers(self) -> list[str]:
        """Everything but what a start leaves that died before its config was written."""
        ours = (LOCK, CHECKSUMS, *LOGS)
        return [n for n in self.storage.names() if n not in ours and not _is_part(n)]

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
        self.check_lock()
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

"""Locks of run directories: one process writes, and notices when the place is no longer its own."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from filelock import FileLock, Timeout

from raysim.errors import OutputError, OutputLost

if TYPE_CHECKING:
    from raysim.storage.objects import Storage

log = logging.getLogger(__name__)
LOCK = ".lock"
ASKED_S = 0.3
"""How long to try for a lock: another process may only be asking whether it is held."""
REFRESH_S = 15.0
"""Seconds between two signs of life of whoever holds a lock."""
STALE_S = 60.0
"""Seconds without a sign of life after which a lock may be taken over."""


class Lock(Protocol):
    """The right to write to a storage."""

    def check(self, *, at_once: bool = False) -> None:
        """Raise ``OutputLost`` if the storage is not the one that was locked any more.

        ``at_once`` asks the storage even where it was asked a moment ago.
        """

    def release(self) -> None:
        """Give it back; harmless when it was given back before."""


class FolderLock:
    """A locked file. It is never removed: a process that has it open would lock a deleted file."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, FileLock(path)
        try:
            self._lock.acquire(timeout=ASKED_S)
        except Timeout:
            raise OutputError(
                f"output {path.parent} is in use by another process; wait for it or choose "
                f"another output"
            ) from None
        self._locked = path.stat()

    def check(self, *, at_once: bool = False) -> None:
        """Raise if the locked file is not at its place any more, and so not the folder."""
        try:
            is_there = os.path.samestat(self._path.stat(), self._locked)
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        if not is_there:
            raise OutputLost(
                f"output {self._path.parent} was deleted or replaced while this run wrote to it, "
                "and was left as it is; put it back and go on with --resume, or start anew"
            )

    def release(self) -> None:
        self._lock.release()


class RemoteLock:
    """One object per process that wants the storage, written again while it lives.

    Everyone writes first and looks second, so of two that come together at least one sees the
    other; times are those of the storage, so clocks need not agree.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage, self._id = storage, uuid.uuid4().hex
        self._name = f"{LOCK}/{self._id}"
        self._ended, self._refreshing = threading.Event(), threading.Lock()
        self._is_lost = False
        self._signed_at = time.monotonic()
        self._sign()
        try:
            self._refuse_others()
        except BaseException:
            with contextlib.suppress(OSError):
                storage.remove(self._name)
            raise
        self._thread = threading.Thread(target=self._live, name="raysim lock", daemon=True)
        self._thread.start()

    def check(self, *, at_once: bool = False) -> None:
        """Raise if another process took over, as it may after a long silence of ours."""
        if at_once or time.monotonic() - self._signed_at > STALE_S / 2:
            self._refresh()
        if self._is_lost:
            raise OutputLost(
                f"output {self._storage.root} was deleted, or taken over by another process since "
                f"this one gave no sign of life for {STALE_S:g} s; let the other one finish"
            )

    def release(self) -> None:
        """Stop the signs of life and remove our object."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._storage.remove(self._name)

    def _refuse_others(self) -> None:
        now = self._storage.modified(self._name)
        for other in self._storage.names(LOCK):
            if other == self._id:
                continue
            try:
                age_s = (now - self._storage.modified(f"{LOCK}/{other}")).total_seconds()
            except FileNotFoundError:
                continue
            if age_s < STALE_S:
                raise OutputError(
                    f"output {self._storage.root} is in use by another process, last seen "
                    f"{max(age_s, 0):.0f} s ago; wait for it or choose another output; if it is "
                    f"dead, try again in {STALE_S - age_s:.0f} s"
                )
            log.warning("taking over %s: no sign of life for %.0f s", self._storage.root, age_s)
            self._storage.remove(f"{LOCK}/{other}")

    def _live(self) -> None:
        while not self._ended.wait(REFRESH_S):
            with contextlib.suppress(OSError):  # the next one may come through; check() looks
                self._refresh()

    def _refresh(self) -> None:
        with self._refreshing:
            if self._is_lost or not self._storage.exists(self._name):
                self._is_lost = True
                return
            began = time.monotonic()
            self._sign()
            if time.monotonic() - self._signed_at > STALE_S:  # another may have removed the old one
                self._is_lost = self._storage.names(LOCK) != [self._id]
            if self._is_lost:
                self._storage.remove(self._name)
            self._signed_at = began  # the storage may have written it at once

    def _sign(self) -> None:
        self._storage.write(self._name, f"{time.time():.0f}\n".encode())

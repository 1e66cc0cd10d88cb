"""Storage at a URL, through fsspec; made for object stores, where one PUT is complete or absent."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO, Any

from raysim.errors import ConfigError, EnvironmentNotFit, OutputError, OutputLost, RaysimError
from raysim.storage.files import Content
from raysim.storage.objects import LOCK, Lock, Storage, checked_name

log = logging.getLogger(__name__)
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Scheme -> extra of raysim that brings its package."""
REFRESH_S = 15.0
"""Seconds between two signs of life of whoever holds a lock."""
STALE_S = 60.0
"""Seconds without a sign of life after which a lock may be taken over."""


class RemoteStorage(Storage):
    """Objects below a URL."""

    def __init__(self, url: str) -> None:
        self.root = url
        self._files, self._path = _connect(url)
        self._appended: dict[str, bytes] = {}

    def open(self, name: str) -> IO[bytes]:
        with _as_os_error():
            return io.BytesIO(self._files.cat_file(self._at(name)))

    def write(self, name: str, content: Content) -> None:
        """Send the object in one request; large ones in parts that appear together."""
        if callable(content):
            buffer = io.BytesIO()
            content(buffer)
            content = buffer.getvalue()
        self._appended.pop(name, None)
        with _as_os_error():
            self._files.pipe_file(self._at(name), content)

    def append(self, name: str, line: bytes) -> None:
        """Send the whole object again: object stores know no append."""
        before = self._appended.get(name)
        if before is None:
            before = self.read(name) if self.exists(name) else b""
        self.write(name, before + line)
        self._appended[name] = before + line

    def exists(self, name: str) -> bool:
        """Ask; only "not found" is a no."""
        with _as_os_error():
            try:
                return bool(self._files.info(self._at(name))["type"] == "file")
            except FileNotFoundError:
                return False

    def names(self, folder: str = "") -> list[str]:
        """List what is directly below."""
        top = self._at(folder) if folder else self._path
        with _as_os_error():
            try:
                found = self._files.ls(top, detail=False)
            except FileNotFoundError:
                return []
        head = top.rstrip("/") + "/"
        return sorted({p[len(head) :].strip("/") for p in found if p.startswith(head)} - {""})

    def find(self, name: str) -> list[str]:
        """List everything below and pick."""
        head = self._path.rstrip("/") + "/"
        with _as_os_error():
            found = self._files.find(self._path)
        tails = [f"/{p[len(head) :]}" for p in found if p.startswith(head)]
        ending = f"/{checked_name(name)}"
        return sorted(self.root + p.removesuffix(ending) for p in tails if p.endswith(ending))

    def remove(self, name: str) -> None:
        self._appended.pop(name, None)
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._at(name), recursive=True)

    def rename(self, old: str, new: str) -> None:
        """Copy, then delete."""
        self.write(new, self.read(old))
        self.remove(old)

    def modified(self, name: str) -> datetime:
        """Return when the object was written, by the clock of the storage."""
        with _as_os_error():
            found: datetime = self._files.modified(self._at(name))
            return found

    def check_writable(self) -> None:
        """Write an object and delete it."""
        name = f".probe-{uuid.uuid4().hex}"
        self.write(name, b"raysim\n")
        self.remove(name)

    def lock(self) -> Lock:
        """Take the lock, or say who has it."""
        return RemoteLock(self)

    def is_in_use(self) -> bool:
        """Whether another process gave a recent sign of life, by this machine's clock."""
        for name in self.names(LOCK):
            with contextlib.suppress(FileNotFoundError):
                seen = self.modified(f"{LOCK}/{name}")
                seen = seen if seen.tzinfo else seen.replace(tzinfo=UTC)
                if (datetime.now(UTC) - seen).total_seconds() < STALE_S:
                    return True
        return False

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{checked_name(name)}"


class RemoteLock:
    """One object per process that wants the storage, written again while it lives.

    Everyone writes first and looks second, so of two that come together at least one sees the
    other; times are those of the storage, so clocks need not agree.
    """

    def __init__(self, storage: RemoteStorage) -> None:
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

    def check(self) -> None:
        """Raise if another process took over, as it may after a long silence of ours."""
        if time.monotonic() - self._signed_at > STALE_S / 2:
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


def _connect(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it."""
    scheme = url.partition("://")[0].lower()
    extra = EXTRAS.get(scheme)
    do = f"pip install 'raysim[{extra}]'" if extra else "install what the message names"
    try:
        import fsspec
        from fsspec.core import url_to_fs

        fsspec.get_filesystem_class(scheme)
    except ImportError as wrong:
        raise EnvironmentNotFit(
            f"output {url} needs a package that is missing here ({wrong}); {do}, on every node"
        ) from wrong
    except ValueError as wrong:
        raise ConfigError(
            f"output {url} has a scheme that fsspec does not know; use a path, s3:// or gs://"
        ) from wrong
    try:
        # What others write must be seen: no listing is kept.
        files, path = url_to_fs(url, use_listings_cache=False)
    except Exception as wrong:
        raise EnvironmentNotFit(
            f"output {url} cannot be opened ({type(wrong).__name__}: {wrong}); check the URL, the "
            "credentials in the environment and the network"
        ) from wrong
    return files, path


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Each library behind fsspec has exceptions of its own; callers know ``OSError``."""
    try:
        yield
    except (OSError, RaysimError):
        raise
    except Exception as wrong:
        raise OSError(errno.EIO, f"{type(wrong).__name__}: {wrong}") from wrong

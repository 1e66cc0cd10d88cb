"""Named byte objects below one root: a folder, or a URL that fsspec knows (s3://, gs://, ...).

An object is complete or absent for every reader, whoever writes it and whenever it stops. What goes
wrong is an ``OSError``, on a disk and on the network alike. Folders use plain paths: fsspec is
imported only where a URL asks for it (``remote.py``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

from filelock import FileLock, Timeout

from raysim.errors import ConfigError, OutputError, OutputLost
from raysim.storage.files import Content, make_folder, sync_folder, write_whole

Place = Path | str
"""A folder (``Path``), or the URL of one (``str``)."""

LOCK = ".lock"
ASKED_S = 0.3
"""How long to try for a lock: another process may only be asking whether it is held."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Lock(Protocol):
    """The right to write to a storage."""

    def check(self) -> None:
        """Raise ``OutputLost`` if the storage is not the one that was locked any more."""

    def release(self) -> None:
        """Give it back; harmless when it was given back before."""


class Storage(ABC):
    """Objects below ``root``; names are plain words with slashes between."""

    root: str

    def read(self, name: str) -> bytes:
        """Return an object's bytes; ``FileNotFoundError`` when there is none."""
        with self.open(name) as file:
            return file.read()

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """Return an object to read from; ``FileNotFoundError`` when there is none."""

    @abstractmethod
    def write(self, name: str, content: Content) -> None:
        """Store an object completely or not at all, in place of an older one."""

    @abstractmethod
    def append(self, name: str, line: bytes) -> None:
        """Add a line to an object completely or not at all; only one process may do so."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is such an object."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Names of objects and folders directly below a folder, sorted; none is no error."""

    @abstractmethod
    def find(self, name: str) -> list[str]:
        """Roots of every folder, at any depth, that holds an object of that name; sorted."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an object; none is no error."""

    @abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove everything below a folder; none is no error."""

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give an object another name."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise ``OSError`` if nothing can be written; leaves nothing behind."""

    @abstractmethod
    def lock(self) -> Lock:
        """Keep other processes out, or raise ``OutputError``."""

    @abstractmethod
    def is_in_use(self) -> bool:
        """Whether a living process holds the lock; nothing is written."""


# ---- places --------------------------------------------------------------------------------


def place(text: str) -> Place:
    """Return where an ``output`` setting points; ``file://`` is a path."""
    refuse_secrets(text)
    if "://" not in text:
        return Path(text).expanduser()
    found = _URL.match(text)
    if found is None:
        raise ConfigError(
            f"output {text!r} is neither a path nor a URL; write a path, or a URL like "
            "s3://bucket/folder"
        )
    if found[1].lower() not in ("file", "local"):
        return text.rstrip("/")
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"output {text!r} names the host {parts.netloc!r}; write file:///folder, with three "
            "slashes"
        )
    return Path(unquote(parts.path))


def refuse_secrets(text: str, name: str = "output") -> None:
    """Refuse a URL that carries a password or a token, without repeating it."""
    found = _URL.search(text)
    rest = text[found.end() :] if found else ""
    if re.search(r":.*@|[?#]", rest):  # a secret key may hold slashes, so look at all of it
        raise ConfigError(
            f"{name} is a {found[1] if found else ''}:// URL with credentials or a query in it, "
            "which would be saved and logged; leave them out and give credentials by environment "
            "variables, a profile or the machine's role"
        )


def below(base: str | Path, where: Place) -> Place:
    """Return a place that may be relative to ``base``; a URL stands for itself."""
    return where if isinstance(where, str) else Path(base) / where


def absolute(where: Place) -> str:
    """Return the text that names a place from any working directory."""
    return where if isinstance(where, str) else str(where.absolute())


def open_storage(where: Place) -> Storage:
    """Return the storage at a place."""
    found = place(where) if isinstance(where, str) else where
    if isinstance(found, Path):
        return LocalStorage(found)
    from raysim.storage.remote import RemoteStorage

    return RemoteStorage(found)


def checked_name(name: str) -> str:
    """Return a name of an object that stays below its root."""
    parts = name.split("/")
    if not all(re.fullmatch(r"[A-Za-z0-9._-]+", part) and part.strip(".") for part in parts):
        raise OutputError(
            f"{name!r} is not a name for a file of a run; use letters, digits, '.', '_' and '-'"
        )
    return name


def remedy(wrong: OSError, root: str) -> str:
    """Return what to do about a write that failed."""
    if wrong.errno in _FULL:
        return f"free space in {root} (or raise its quota)"
    return f"make {root} reachable and writable again"


# ---- folders -------------------------------------------------------------------------------


class LocalStorage(Storage):
    """A folder of this machine, or one that it has mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.root = str(folder)

    def open(self, name: str) -> IO[bytes]:
        return self._path(name).open("rb")

    def write(self, name: str, content: Content) -> None:
        """Write the file, completely or not at all."""
        write_whole(self._path(name), content)

    def append(self, name: str, line: bytes) -> None:
        """Append and bring it to the disk; what could not be added whole is cut off again."""
        path = self._path(name)
        is_new = not path.exists()
        make_folder(path.parent)
        with path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                left = memoryview(line)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise
        if is_new:
            sync_folder(path.parent)

    def exists(self, name: str) -> bool:
        """Whether the file is there; ``Path.is_file`` takes every error for a no in Python 3.14."""
        try:
            return stat.S_ISREG(self._path(name).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self, folder: str = "") -> list[str]:
        path = self._path(folder) if folder else self._folder
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def find(self, name: str) -> list[str]:
        found = self._folder.rglob(checked_name(name)) if self._folder.is_dir() else ()
        return [str(path) for path in sorted(p.parent for p in found)]

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._path(name))

    def rename(self, old: str, new: str) -> None:
        self._path(old).replace(self._path(new))

    def check_writable(self) -> None:
        """Try it: permission bits do not tell the truth for root or on network drives."""
        parent = self._folder
        while not parent.exists():
            parent = parent.parent
        with tempfile.TemporaryFile(dir=parent):
            pass

    def lock(self) -> Lock:
        """Lock a file; the system lets go of it when this process ends, however it does."""
        make_folder(self._folder)
        return FolderLock(self._folder / LOCK)

    def is_in_use(self) -> bool:
        """Try a shared lock for a moment; a process that wants the lock just then tries again."""
        try:
            with (self._folder / LOCK).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError as wrong:
            if wrong.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return True
            raise
        return False

    def _path(self, name: str) -> Path:
        return self._folder / checked_name(name)


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

    def check(self) -> None:
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

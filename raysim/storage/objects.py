"""Named byte objects below one root: a folder, or a URL that fsspec knows (s3://, gs://, ...).

An object is complete or absent for every reader, whoever writes it and whenever it stops. What goes
wrong is an ``OSError``, on a disk and on the network alike. Folders use plain paths: fsspec is
imported only where a URL asks for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from raysim.errors import ConfigError, EnvironmentNotFit, OutputError, RaysimError
from raysim.storage import locks
from raysim.storage.files import Content, make_folder, sync_folder, write_whole
from raysim.storage.locks import LOCK, FolderLock, Lock, RemoteLock

Place = Path | str
"""A folder (``Path``), or the URL of one (``str``)."""

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Scheme -> extra of raysim that brings its package."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_storage(where: Place) -> Storage:
    """Return the storage at a place."""
    found = place(where) if isinstance(where, str) else where
    return LocalStorage(found) if isinstance(found, Path) else Storage(found)


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


# ---- storage --------------------------------------------------------------------------------


class Storage:
    """Objects below ``root``; names are plain words with slashes between.

    This is the storage of a URL, through fsspec: an object store, where one PUT is complete or
    absent. A folder (``LocalStorage``) does the same with the guarantees of a disk.
    """

    def __init__(self, url: str) -> None:
        self.root = url
        self._files, self._path = _connect(url)
        self._appended: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        """Return an object's bytes; ``FileNotFoundError`` when there is none."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> IO[bytes]:
        """Return an object to read from; ``FileNotFoundError`` when there is none."""
        with _as_os_error():
            return io.BytesIO(self._files.cat_file(self._at(name)))

    def write(self, name: str, content: Content) -> None:
        """Store an object completely or not at all, in place of an older one."""
        if callable(content):
            buffer = io.BytesIO()
            content(buffer)
            content = buffer.getvalue()
        self._appended.pop(name, None)
        with _as_os_error():
            self._files.pipe_file(self._at(name), content)

    def append(self, name: str, line: bytes) -> None:
        """Add a line to an object completely or not at all; only one process may do so.

        Object stores know no append: the whole object is sent again.
        """
        before = self._appended.get(name)
        if before is None:
            before = self.read(name) if self.exists(name) else b""
        self.write(name, before + line)
        self._appended[name] = before + line

    def exists(self, name: str) -> bool:
        """Whether there is such an object; only "not found" is a no."""
        with _as_os_error():
            try:
                return bool(self._files.info(self._at(name))["type"] == "file")
            except FileNotFoundError:
                return False

    def names(self, folder: str = "") -> list[str]:
        """Names of objects and folders directly below a folder, sorted; none is no error."""
        top = self._at(folder) if folder else self._path
        with _as_os_error():
            try:
                found = self._files.ls(top, detail=False)
            except FileNotFoundError:
                return []
        head = top.rstrip("/") + "/"
        return sorted({p[len(head) :].strip("/") for p in found if p.startswith(head)} - {""})

    def find(self, name: str) -> list[str]:
        """Roots of every folder, at any depth, that holds an object of that name; sorted."""
        head = self._path.rstrip("/") + "/"
        with _as_os_error():
            found = self._files.find(self._path)
        tails = [f"/{p[len(head) :]}" for p in found if p.startswith(head)]
        ending = f"/{checked_name(name)}"
        return sorted(self.root + p.removesuffix(ending) for p in tails if p.endswith(ending))

    def remove(self, name: str) -> None:
        """Remove an object; none is no error."""
        self._appended.pop(name, None)
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._at(name))

    def remove_folder(self, name: str) -> None:
        """Remove everything below a folder; none is no error."""
        with _as_os_error(), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._at(name), recursive=True)

    def rename(self, old: str, new: str) -> None:
        """Give an object another name."""
        self.write(new, self.read(old))
        self.remove(old)

    def modified(self, name: str) -> datetime:
        """Return when the object was written, by the clock of the storage."""
        with _as_os_error():
            found: datetime = self._files.modified(self._at(name))
            return found

    def check_writable(self) -> None:
        """Raise ``OSError`` if nothing can be written; leaves nothing behind."""
        name = f".probe-{uuid.uuid4().hex}"
        self.write(name, b"raysim\n")
        self.remove(name)

    def lock(self) -> Lock:
        """Keep other processes out, or raise ``OutputError``."""
        return RemoteLock(self)

    def is_in_use(self) -> bool:
        """Whether a living process holds the lock, by this machine's clock; nothing is written."""
        for name in self.names(LOCK):
            with contextlib.suppress(FileNotFoundError):
                seen = self.modified(f"{LOCK}/{name}")
                seen = seen if seen.tzinfo else seen.replace(tzinfo=UTC)
                if (datetime.now(UTC) - seen).total_seconds() < locks.STALE_S:
                    return True
        return False

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{checked_name(name)}"


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


class LocalStorage(Storage):
    """A folder of this machine, or one that it has mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.root = folder, str(folder)

    def open(self, name: str) -> IO[bytes]:
        return self._file(name).open("rb")

    def write(self, name: str, content: Content) -> None:
        write_whole(self._file(name), content)

    def append(self, name: str, line: bytes) -> None:
        """Append and bring it to the disk; what could not be added whole is cut off again."""
        path = self._file(name)
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
            return stat.S_ISREG(self._file(name).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def names(self, folder: str = "") -> list[str]:
        path = self._file(folder) if folder else self._folder
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def find(self, name: str) -> list[str]:
        found = self._folder.rglob(checked_name(name)) if self._folder.is_dir() else ()
        return [str(path) for path in sorted(p.parent for p in found)]

    def remove(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._file(name))

    def rename(self, old: str, new: str) -> None:
        self._file(old).replace(self._file(new))

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

    def _file(self, name: str) -> Path:
        return self._folder / checked_name(name)

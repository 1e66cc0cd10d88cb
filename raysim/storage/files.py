"""Files of this machine: written whole or not at all, arrays that run no code, JSON for everybody.

What goes wrong while writing is an ``OSError``; an array that cannot be read is a ``DataError``
with the caller's words.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from raysim.errors import DataError, OutputError

if TYPE_CHECKING:
    import numpy as np

Content = bytes | Callable[[IO[bytes]], None]
"""What a file holds: the bytes, or a function that writes them."""
PART = ".part"
"""Ending of files that are not whole yet."""
NOT_FINITE = "not_finite"
"""Entry that names what was NaN or infinite before it became null."""
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES)
_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06")
"""How npy and npz files begin."""
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, NotImplementedError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What NumPy raises for a file that is not what it should be."""


# ---- writing -------------------------------------------------------------------------------


def write_whole(path: Path, content: Content) -> None:
    """Fill a file beside ``path``, bring that to the disk, and rename it into place."""
    make_folder(path.parent)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}{PART}")
    try:
        with part.open("xb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it so that they outlive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk; some network drives cannot and need not."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(number)
    except OSError as wrong:
        if wrong.errno not in _NO_SYNC:
            raise
    finally:
        os.close(number)


def save_output(path: Path, content: bytes) -> None:
    """Write a file that ``--out`` names, completely or not at all."""
    try:
        write_whole(path, content)
    except OSError as wrong:
        raise _unwritable(path, wrong) from wrong


def make_output_folder(folder: Path) -> None:
    """Make the folder that ``--out`` names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        raise _unwritable(folder, wrong) from wrong


def _unwritable(path: Path, wrong: OSError) -> OutputError:
    return OutputError(f"{path} cannot be written ({reason(wrong)}); choose another --out")


def reason(wrong: OSError) -> str:
    """Return what the system says about an error, in one line."""
    text = str(wrong.strerror or wrong) or type(wrong).__name__
    return " ".join(text.split())


# ---- arrays --------------------------------------------------------------------------------


def read_array(
    source: str | Path | IO[bytes], say: Callable[[str], str], *, mapped: bool = False
) -> np.ndarray:
    """Return the array of an npy file; ``say`` turns what is wrong with it into a message.

    ``mapped`` leaves the array on the disk. Nothing is ever unpickled: a data file must not be able
    to run code.
    """
    import numpy as np

    try:
        _refuse_other_kinds(source)
        array = np.load(source, mmap_mode="r" if mapped else None, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("an npz archive instead of one array")
    except _UNREADABLE as wrong:
        raise DataError(say(str(wrong))) from wrong
    return array


@contextlib.contextmanager
def open_arrays(
    source: str | Path | IO[bytes], say: Callable[[str], str]
) -> Iterator[np.lib.npyio.NpzFile]:
    """Give the arrays of an npz file by name; they are read, and found damaged, in the block."""
    import numpy as np

    try:
        with contextlib.ExitStack() as closing:
            _refuse_other_kinds(source)
            archive = np.load(source, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("a single array instead of an npz archive")
            yield closing.enter_context(archive)
    except _UNREADABLE as wrong:
        raise DataError(say(str(wrong))) from wrong


def _refuse_other_kinds(source: str | Path | IO[bytes]) -> None:
    """Raise for what NumPy would take for a pickle, and advise to load unsafely."""
    if isinstance(source, str | Path):
        with Path(source).open("rb") as file:
            head = file.read(6)
    else:
        start = source.tell()
        head = source.read(6)
        source.seek(start)
    if head and not head.startswith(_MAGIC):
        raise ValueError("a file of another kind")


# ---- JSON ----------------------------------------------------------------------------------


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return JSON that every reader takes: see ``finite``."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Return plain values with null for NaN and infinity; a mapping's ``not_finite`` names them."""
    names: list[str] = []
    plain = _finite(value, "", names)
    if names and isinstance(plain, dict):
        plain[NOT_FINITE] = names
    return plain


def _finite(value: Any, path: str, names: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v, f"{path}.{k}" if path else str(k), names) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{path}[{i}]", names) for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        names.append(path)
        return None
    return value

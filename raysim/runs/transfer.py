"""Run directories on their way home: listed, packed, sent as lines of text, unpacked with care.

``python -m raysim.runs.transfer`` runs on the cluster, reads ``request.json`` in its working
folder, and prints the run directory as a packed archive in base64, between a line that says how
many bytes with which sha256 will come and a line that ends it. Nothing is ever unpickled.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from raysim.errors import DataError, OutputError, RaysimError
from raysim.runs.checksums import CHECKSUMS, RECORDS, Entries, stored
from raysim.runs.folder import OWN
from raysim.storage.checkpoint import MANIFEST, PREVIOUS, objects_of, verified
from raysim.storage.locks import LOCK
from raysim.storage.objects import Storage, open_storage, place

REQUEST = "request.json"
BEGIN, PART, END, WRONG = "raysim-begin ", "raysim-part ", "raysim-end", "raysim-wrong "
PART_BYTES = 12_000
"""Bytes per line: Ray hands a log on in pieces of about 20,000 characters."""
MOST_BYTES = 2 * 10**9
"""More than this is not for a job's log; storage has tools of its own for it."""
TRIES = 5
"""How often the commits of a living run are read anew when it replaced them meanwhile."""
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAMES = re.compile(
    rf"(?:{'|'.join(map(re.escape, OWN))}"
    rf"|artifacts/{_WORD}\.npy|(?P<model>checkpoint/(?:{_WORD}/)?{_WORD}\.(?:json|npz)"
    rf"|models/{_WORD}\.(?:json|safetensors)))",
    re.ASCII,
)


def belongs(name: str, *, models: bool) -> bool:
    """Whether a path is one of a run directory; ``models`` lets models and checkpoints in."""
    found = _NAMES.fullmatch(name)
    return found is not None and (models or found["model"] is None)


class _Replaced(Exception):
    """An object of a commit went away: the run made newer commits meanwhile."""


def _files(storage: Storage, *, models: bool) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield names and contents of a run directory's files; nothing where there is none.

    Manifests are read first, so what they need is there or was replaced: the records only grow.
    Checksums come last, and only of files that were not replaced meanwhile.
    """
    if not storage.exists("config.yaml"):
        return
    sums = _checksums(storage)
    manifests = _manifests(storage) if models else {}
    for name, content in manifests.items():
        yield name, io.BytesIO(content)
    for folder in ("", "artifacts", "models"):
        for name in (f"{folder}/{n}".lstrip("/") for n in storage.names(folder)):
            if belongs(name, models=models) and name != CHECKSUMS:
                with storage.open(name) as source:
                    yield name, source
    digests = set().union(*(objects_of(verified(m) or {}) for m in manifests.values()))
    for name in (f"checkpoint/objects/{digest}.npz" for digest in sorted(digests)):
        try:
            source = storage.open(name)
        except FileNotFoundError as wrong:
            raise _Replaced(name) from wrong
        with source:
            yield name, source
    if sums:
        now = _checksums(storage)
        same = {n: e for n, e in sums.items() if n == RECORDS or now.get(n) == e}
        yield CHECKSUMS, io.BytesIO(json.dumps({"sha256": same}, indent=1).encode())


def _checksums(storage: Storage) -> Entries:
    try:
        return stored(storage)
    except ValueError as wrong:
        raise DataError(
            f"{storage.root}: {wrong}; restore it from a copy, or remove it: then the run is "
            "copied unverified"
        ) from wrong


def _manifests(storage: Storage) -> dict[str, bytes]:
    found = {}
    for name in (f"checkpoint/{MANIFEST}", f"checkpoint/{PREVIOUS}"):
        with contextlib.suppress(FileNotFoundError):
            found[name] = storage.read(name)
    return found


def _steadily(storage: Storage, attempt: Callable[[], bool]) -> bool:
    """Return what the attempt does, made anew while the run replaces its commits."""
    for _ in range(TRIES):
        try:
            return attempt()
        except _Replaced as wrong:
            missing = wrong
    raise DataError(
        f"{storage.root} lacks {missing}, which its commit names: it is damaged, or the run "
        "commits faster than it can be read; try again when it has ended, or leave out --models"
    ) from missing


# ---- sending -------------------------------------------------------------------------------


def pack(storage: Storage, archive: IO[bytes], *, models: bool, most_bytes: int) -> None:
    """Write a run directory into a packed archive, without owners and modes."""

    def attempt() -> bool:
        archive.seek(0)
        archive.truncate()
        total = 0
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
            for name, source in _files(storage, models=models):
                entry = tarfile.TarInfo(name)
                entry.size = source.seek(0, io.SEEK_END)  # what it has now, should it still grow
                source.seek(0)
                total += entry.size
                if total > most_bytes:
                    raise DataError(
                        f"{storage.root} holds more than the {most_bytes / 1e9:g} GB that come "
                        "through a job's log; copy it with rsync or the storage's own tools"
                    )
                tar.addfile(entry, source)
            return bool(tar.getmembers())

    if not _steadily(storage, attempt):
        raise DataError(f"no run directory at {storage.root} on the cluster")


def send(archive: IO[bytes], out: Any) -> None:
    """Print an archive as lines of text."""
    archive.seek(0)
    digest = hashlib.sha256()
    while block := archive.read(1 << 20):
        digest.update(block)
    promise = {"bytes": archive.tell(), "sha256": digest.hexdigest()}
    out.write(f"{BEGIN}{json.dumps(promise)}\n")
    archive.seek(0)
    while piece := archive.read(PART_BYTES):
        out.write(f"{PART}{base64.b64encode(piece).decode()}\n")
    out.write(f"{END}\n")
    out.flush()


def main() -> int:
    """Answer the request beside this process; return the exit code."""
    request = json.loads(Path(REQUEST).read_text(encoding="utf-8"))
    try:
        storage = open_storage(place(str(request["run"])))
        with tempfile.TemporaryFile() as archive:
            pack(storage, archive, models=bool(request["models"]), most_bytes=MOST_BYTES)
            send(archive, sys.stdout)
    except (RaysimError, OSError) as wrong:
        print(f"{WRONG}{json.dumps(str(wrong))}", flush=True)
        return wrong.exit_code if isinstance(wrong, RaysimError) else 1
    return 0


# ---- receiving -----------------------------------------------------------------------------


def receive(chunks: Iterable[str], archive: IO[bytes]) -> None:
    """Write what ``send`` printed, amid other lines, to ``archive``; refuse it if it is not whole.

    ``chunks`` may be cut anywhere.
    """
    promised: dict[str, Any] | None = None
    digest, got, ended = hashlib.sha256(), 0, False
    for line in _whole_lines(chunks):
        if line.startswith(WRONG):
            raise DataError(str(json.loads(line.removeprefix(WRONG))))
        if line.startswith(BEGIN):
            promised = json.loads(line.removeprefix(BEGIN))
        elif line.startswith(PART) and promised is not None:
            piece = _decoded(line.removeprefix(PART))
            got += len(piece)
            if got > promised["bytes"]:
                raise DataError("more bytes came from the cluster than it promised; try again")
            digest.update(piece)
            archive.write(piece)
        ended = ended or line == END
    if promised is None or not ended:
        raise DataError("the cluster did not send the run directory completely; try again")
    if (got, digest.hexdigest()) != (promised["bytes"], promised["sha256"]):
        raise DataError(
            f"what came from the cluster is damaged: {got} bytes instead of {promised['bytes']}, "
            "or another sha256; try again"
        )
    archive.seek(0)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as wrong:
        raise DataError(f"a line from the cluster is damaged ({wrong}); try again") from wrong


def _whole_lines(chunks: Iterable[str]) -> Iterator[str]:
    rest = ""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split("\n")
        yield from lines
    if rest:
        yield rest


def unpack(archive: IO[bytes], into: Path, *, models: bool, most_bytes: int = MOST_BYTES) -> None:
    """Unpack into an empty folder; anything but plain files of a run directory is refused."""
    left = most_bytes
    try:
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            for entry in tar:
                left -= entry.size
                if not entry.isreg() or not belongs(entry.name, models=models):
                    raise DataError(f"the archive holds {entry.name!r}, which no run directory has")
                if left < 0:
                    raise DataError(f"the archive unpacks to more than {most_bytes} bytes")
                source = tar.extractfile(entry)
                assert source is not None  # it is a regular file
                _write(source, into / entry.name)
    except (tarfile.TarError, EOFError, OSError) as wrong:
        raise DataError(f"the archive cannot be unpacked: {wrong}") from wrong


def copy(storage: Storage, into: Path, *, models: bool) -> bool:
    """Copy a run directory that can be read from here into an empty folder; False: none there."""

    def attempt() -> bool:
        written: list[Path] = []
        try:
            for name, source in _files(storage, models=models):
                written.append(into / name)
                _write(source, written[-1])
        except _Replaced:
            for path in written:
                path.unlink()
            raise
        return bool(written)

    return _steadily(storage, attempt)


def _write(source: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:  # a name that comes twice is refused
        shutil.copyfileobj(source, file)


def check_destination(folder: Path, *, force: bool) -> None:
    """Refuse a folder that must not be replaced."""
    if not folder.exists() or (folder.is_dir() and {p.name for p in folder.iterdir()} <= {LOCK}):
        return
    is_run = folder.is_dir() and (folder / "config.yaml").is_file()
    if not is_run:
        raise OutputError(f"{folder} is there and not a run directory; choose another --to")
    if not force:
        raise OutputError(f"{folder} holds a run; use --force to replace it, or another --to")


@contextlib.contextmanager
def arriving(parent: Path) -> Iterator[Path]:
    """Yield a new folder in ``parent``; gone afterwards, unless ``arrive`` has moved it."""
    parent.mkdir(parents=True, exist_ok=True)
    part = parent / f".raysim-{uuid.uuid4().hex}.part"
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def arrive(part: Path, folder: Path, *, force: bool) -> None:
    """Give a complete folder its name; what had the name before goes only then."""
    check_destination(folder, force=force)
    old = part.with_name(part.name + ".old")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rename(old)
    try:
        part.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

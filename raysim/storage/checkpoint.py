"""Commits: content-addressed arrays plus a manifest that appears at once. No pickles.

``folder/objects/<sha256>.npz`` holds arrays and is named by their content;
``folder/manifest.json`` is the newest commit,
``folder/manifest-previous.json`` the one before it. A commit exists once its manifest does. One
that turned out to be damaged is set aside as ``manifest-damaged.json``. ``folder`` is a path or a
URL; actors write objects to it from their own nodes.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from raysim.errors import CheckpointError
from raysim.protocols import Tree
from raysim.settings import check, settings
from raysim.storage.files import PART, open_arrays, reason
from raysim.storage.objects import Storage, open_storage, remedy

log = logging.getLogger(__name__)
MANIFEST, PREVIOUS = "manifest.json", "manifest-previous.json"
DAMAGED = "manifest-damaged.json"


@settings
class CheckpointSettings:
    """How often a run can be taken up again."""

    every: int = 1
    """Rounds between two commits; the end of a stage and an interrupt always commit."""

    def __post_init__(self) -> None:
        check(self.every >= 1, "every", "must be at least 1", got=self.every)


def tree_digest(tree: Tree) -> str:
    """Return the sha256 of names, types, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(tree):
        array = np.asarray(tree[name], order="C")
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


def write_object(folder: str | Path, tree: Tree) -> str:
    """Store a tree under its digest and return the digest; a whole object is left alone."""
    digest, storage = tree_digest(tree), open_storage(folder)
    with _writing(storage):
        if not _is_known_whole(storage, digest):  # a damaged one must not stay for later commits
            storage.write(_object_name(digest), lambda file: _write_npz(file, tree))
    return digest


def read_object(folder: str | Path, digest: str) -> dict[str, np.ndarray]:
    """Return a stored tree; a missing or damaged object is an error that names the file."""
    storage = open_storage(folder)
    try:
        return _read_object(storage, digest)
    except OSError as wrong:
        raise _unreachable(storage, wrong) from wrong


def write_manifest(folder: str | Path, manifest: Mapping[str, Any]) -> None:
    """Make ``manifest`` the newest commit; the one before it is kept, older objects are removed."""
    storage = open_storage(folder)
    text = json.dumps(manifest, sort_keys=True)
    signed = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": manifest})
    with _writing(storage):
        newest = _content(storage, MANIFEST)
        if verified(newest) is not None:  # a damaged one must not push out the way back
            storage.write(PREVIOUS, newest)
        storage.write(MANIFEST, signed.encode())
    try:
        _forget_old(storage, manifest)
    except OSError as wrong:  # the commit is made; the next one tries again
        log.warning("old objects of %s could not be removed: %s", storage.root, reason(wrong))


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """Return the newest whole commit, or None when there is none at all.

    One that is damaged is set aside. One that cannot be read now may be whole: that is an error,
    and everything stays as it is.
    """
    storage = open_storage(folder)
    try:
        return _newest(storage)
    except OSError as wrong:
        raise _unreachable(storage, wrong) from wrong


def _newest(storage: Storage) -> dict[str, Any] | None:
    names = [name for name in (MANIFEST, PREVIOUS) if storage.exists(name)]
    if not names:
        return None
    for name in names:
        manifest = _intact(storage, name)
        if manifest is None:
            log.warning("checkpoint %s/%s is damaged; trying the one before it", storage.root, name)
            continue
        if name != names[0]:  # the next commit must not take the damaged one for a good one
            storage.rename(names[0], DAMAGED)
        return manifest
    raise CheckpointError(
        f"every commit in {storage.root} is damaged; start anew with --force, or restore the "
        f"folder from a copy"
    )


def _unreachable(storage: Storage, wrong: OSError) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint in {storage.root} cannot be read now ({reason(wrong)}) and was left as it "
        "is; make it reachable and try --resume again"
    )


def objects_of(manifest: Mapping[str, Any]) -> set[str]:
    """Digests a commit refers to: its models and its clients' memory."""
    memory: Mapping[str, Any] = manifest.get("memory", {})
    return set(manifest.get("models", {}).values()) | set(memory)


@contextlib.contextmanager
def _writing(storage: Storage) -> Iterator[None]:
    """End the run with a clear error; what is not whole was removed by the storage."""
    try:
        yield
    except OSError as wrong:
        raise CheckpointError(
            f"the checkpoint in {storage.root} could not be written ({reason(wrong)}); the commit "
            f"before it is whole: {remedy(wrong, storage.root)}, then go on with --resume"
        ) from wrong


def _read_object(storage: Storage, digest: str) -> dict[str, np.ndarray]:
    """Return a tree; ``OSError``: cannot be read now, ``CheckpointError``: damaged or missing."""
    path = f"{storage.root}/{_object_name(digest)}"
    try:
        content = storage.read(_object_name(digest))  # all of it: damage must not look like a disk
    except FileNotFoundError as wrong:
        raise CheckpointError(f"checkpoint object {path} is missing") from wrong
    try:
        with open_arrays(io.BytesIO(content), str) as file:
            tree = {name: file[name] for name in file.files}
    except Exception as wrong:  # numpy, zipfile and zlib each have their own classes
        raise CheckpointError(f"checkpoint object {path} is damaged: {wrong}") from wrong
    if tree_digest(tree) != digest:
        raise CheckpointError(
            f"checkpoint object {path} is damaged: its content has another digest"
        )
    return tree


def _intact(storage: Storage, name: str) -> dict[str, Any] | None:
    """Return the commit if it and all its objects are whole."""
    manifest = verified(_content(storage, name))
    if manifest is None or not all(_is_whole(storage, digest) for digest in objects_of(manifest)):
        return None
    return manifest


def _is_whole(storage: Storage, digest: str) -> bool:
    try:
        if not storage.exists(_object_name(digest)):
            return False
        _read_object(storage, digest)
    except CheckpointError as wrong:
        log.warning("%s", wrong)
        return False
    return True


def _is_known_whole(storage: Storage, digest: str) -> bool:
    """Whether an object need not be written: one that cannot be read now is written again."""
    try:
        return _is_whole(storage, digest)
    except OSError:
        return False


def _content(storage: Storage, name: str) -> bytes:
    """Return an object's bytes, none where there is none."""
    try:
        return storage.read(name)
    except FileNotFoundError:
        return b""


def verified(content: bytes) -> dict[str, Any] | None:
    """Return a manifest whose checksum holds, else None."""
    try:
        signed = json.loads(content)
        manifest: dict[str, Any] = signed["manifest"]
        text = json.dumps(manifest, sort_keys=True)
        is_whole = signed["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    except (ValueError, KeyError, TypeError):
        return None
    return manifest if is_whole else None


def _write_npz(file: IO[bytes], tree: Tree) -> None:
    """Write what ``numpy.load`` reads; ``numpy.savez`` refuses some names and accepts pickles."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in tree.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.asarray(value), allow_pickle=False)


def _forget_old(storage: Storage, newest: Mapping[str, Any]) -> None:
    """Remove objects that neither commit needs; nothing if the older one cannot be read now."""
    previous = verified(_content(storage, PREVIOUS)) or {}
    keep = {f"{digest}.npz" for digest in objects_of(newest) | objects_of(previous)}
    for name in storage.names("objects"):
        if name not in keep and name.endswith((".npz", PART)):
            storage.remove(f"objects/{name}")
    for name in storage.names():
        if name.endswith(PART):
            storage.remove(name)


def _object_name(digest: str) -> str:
    if not (digest.isascii() and digest.isalnum()):  # it may come from a file of others
        raise CheckpointError(f"{digest!r} is not the name of a checkpoint object")
    return f"objects/{digest}.npz"

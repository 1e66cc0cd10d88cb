"""Commits: content-addressed arrays plus a manifest that is renamed into place. No pickles.

``folder/objects/<sha256>.npz`` holds arrays and is named by their content;
``folder/manifest.json`` is the newest commit,
``folder/manifest-previous.json`` the one before it. A commit exists once its manifest does. One
that turned out to be damaged is set aside as ``manifest-damaged.json``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from raysim.errors import CheckpointError
from raysim.protocols import Tree
from raysim.settings import check, settings

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
    digest = tree_digest(tree)
    path = _object_path(folder, digest)
    if not _is_whole(folder, digest):  # a damaged one must not stay for all later commits
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{digest}.{uuid.uuid4().hex}.part")
        with part.open("wb") as file:
            _write_npz(file, tree)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    return digest


def read_object(folder: str | Path, digest: str) -> dict[str, np.ndarray]:
    """Return a stored tree; a missing or damaged object is an error that names the file."""
    path = _object_path(folder, digest)
    try:
        with np.load(path, allow_pickle=False) as file:
            tree = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, SyntaxError) as wrong:
        raise CheckpointError(f"checkpoint object {path} cannot be read: {wrong}") from wrong
    except Exception as wrong:  # zipfile and zlib raise their own classes on damage
        raise CheckpointError(f"checkpoint object {path} is damaged: {wrong}") from wrong
    if tree_digest(tree) != digest:
        raise CheckpointError(
            f"checkpoint object {path} is damaged: its content has another digest"
        )
    return tree


def write_manifest(folder: str | Path, manifest: Mapping[str, Any]) -> None:
    """Make ``manifest`` the newest commit; the one before it is kept, older objects are removed."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(manifest, sort_keys=True)
    signed = json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "manifest": manifest})
    newest = folder / MANIFEST
    if _signed(newest) is not None:  # a damaged one must not push out the way back
        _replace(folder / PREVIOUS, newest.read_text(encoding="utf-8"))
    _replace(newest, signed)
    _forget_old(folder)


def read_manifest(folder: str | Path) -> dict[str, Any] | None:
    """Return the newest commit that can be read, or None when there is none at all."""
    folder = Path(folder)
    paths = [p for p in (folder / MANIFEST, folder / PREVIOUS) if p.exists()]
    if not paths:
        return None
    for path in paths:
        manifest = _intact(folder, path)
        if manifest is None:
            log.warning("checkpoint %s is damaged; trying the one before it", path)
            continue
        if path != paths[0]:  # the next commit must not take the damaged one for a good one
            paths[0].replace(folder / DAMAGED)
        return manifest
    raise CheckpointError(
        f"no commit in {folder} can be read; start anew with --force, or restore the folder "
        f"from a copy"
    )


def objects_of(manifest: Mapping[str, Any]) -> set[str]:
    """Digests a commit refers to: its models and its clients' memory."""
    memory: Mapping[str, Any] = manifest.get("memory", {})
    return set(manifest.get("models", {}).values()) | set(memory)


def _intact(folder: Path, path: Path) -> dict[str, Any] | None:
    """Return the commit if it and all its objects are whole."""
    manifest = _signed(path)
    if manifest is None or not all(_is_whole(folder, digest) for digest in objects_of(manifest)):
        return None
    return manifest


def _is_whole(folder: str | Path, digest: str) -> bool:
    if not _object_path(folder, digest).exists():
        return False
    try:
        read_object(folder, digest)
    except CheckpointError as wrong:
        log.warning("%s", wrong)
        return False
    return True


def _signed(path: Path) -> dict[str, Any] | None:
    """Return a manifest whose checksum holds, else None."""
    try:
        signed = json.loads(path.read_text(encoding="utf-8"))
        manifest: dict[str, Any] = signed["manifest"]
        text = json.dumps(manifest, sort_keys=True)
        is_whole = signed["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return manifest if is_whole else None


def _write_npz(file: IO[bytes], tree: Tree) -> None:
    """Write what ``numpy.load`` reads; ``numpy.savez`` refuses some names and accepts pickles."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, value in tree.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                npy.write_array(member, np.asarray(value), allow_pickle=False)


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _forget_old(folder: Path) -> None:
    keep: set[str] = set()
    for path in (folder / MANIFEST, folder / PREVIOUS):
        keep |= objects_of(_signed(path) or {})
    for path in _files(folder / "objects"):
        if path.suffix != ".npz" or path.stem not in keep:
            path.unlink(missing_ok=True)


def _object_path(folder: str | Path, digest: str) -> Path:
    return Path(folder) / "objects" / f"{digest}.npz"


def _files(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []

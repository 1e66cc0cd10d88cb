"""Commits: content-addressed arrays plus a manifest that is renamed into place. No pickles.

``folder/objects/<sha256>.npz`` holds arrays and is named by their content;
``folder/manifest.json`` is the newest commit,
``folder/manifest-previous.json`` the one before it. A commit exists once its manifest does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raysim.errors import CheckpointError
from raysim.protocols import Tree
from raysim.settings import check, settings

log = logging.getLogger(__name__)
MANIFEST, PREVIOUS = "manifest.json", "manifest-previous.json"


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
        array = np.ascontiguousarray(tree[name])
        digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()


def write_object(folder: str | Path, tree: Tree) -> str:
    """Store a tree under its digest and return the digest; an object that exists is left alone."""
    digest = tree_digest(tree)
    path = Path(folder) / "objects" / f"{digest}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{digest}.{uuid.uuid4().hex}.part")
        with part.open("wb") as file:
            arrays: dict[str, Any] = {name: np.asarray(value) for name, value in tree.items()}
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    return digest


def read_object(folder: str | Path, digest: str) -> dict[str, np.ndarray]:
    """Return a stored tree; a missing or damaged object is an error that names the file."""
    path = Path(folder) / "objects" / f"{digest}.npz"
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
    if newest.exists():
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
        if manifest is not None:
            return manifest
        log.warning("checkpoint %s is damaged; trying the one before it", path)
    raise CheckpointError(
        f"no commit in {folder} can be read; start anew with --force, or restore the folder "
        f"from a copy"
    )


def objects_of(manifest: Mapping[str, Any]) -> set[str]:
    """Digests a commit refers to: its models and its clients' memory."""
    memory: Mapping[str, Any] = manifest.get("memory", {})
    return set(manifest.get("models", {}).values()) | set(memory)


def _intact(folder: Path, path: Path) -> dict[str, Any] | None:
    try:
        signed = json.loads(path.read_text(encoding="utf-8"))
        manifest: dict[str, Any] = signed["manifest"]
        text = json.dumps(manifest, sort_keys=True)
        if signed["sha256"] != hashlib.sha256(text.encode()).hexdigest():
            return None
        for digest in objects_of(manifest):
            read_object(folder, digest)
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return None
    return manifest


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
        if path.exists():
            keep |= objects_of(json.loads(path.read_text(encoding="utf-8"))["manifest"])
    for path in _files(folder / "objects"):
        if path.stem.lstrip(".").split(".")[0] not in keep:
            path.unlink(missing_ok=True)


def _files(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []

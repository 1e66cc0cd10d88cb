"""Whether every node of the cluster can use the run's storage."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from raysim.errors import EnvironmentNotFit, OutputError, RaysimError
from raysim.runtime.placement import Node
from raysim.runtime.ray.connection import nodes, run_on
from raysim.storage.objects import Storage, open_storage, place, reason, remedy

ANSWER_S = 30.0
"""How long a node may take to answer; most of it is the start of a worker process."""


def check_reachable(folder: str) -> None:
    """Refuse a run directory (path or URL) that a living node cannot read and write.

    A folder of the only node needs no check; a URL always does, since actors are processes of
    their own.
    """
    living = nodes()
    if len(living) < 2 and isinstance(place(folder), Path):
        return
    wrong = unreachable(folder, living)
    if not wrong:
        return
    listed = "; ".join(f"{name}: {why}" for name, why in wrong)
    raise EnvironmentNotFit(
        f"output {folder} is not reachable from {len(wrong)} of {len(living)} nodes ({listed}); "
        "mount the same folder there on every node (NFS, EFS), or use an output like "
        "s3://bucket/folder with credentials on every node"
    )


def unreachable(folder: str, living: list[Node]) -> list[tuple[str, str]]:
    """Return (address, reason) of every node that does not see what the driver writes, or back."""
    storage = open_storage(folder)
    token = uuid.uuid4().hex
    ours, theirs = f".probe-{token}", {node.id: f".probe-{token}-{node.id}" for node in living}
    try:
        with _new_folders_removed(folder), _removed(storage, [ours, *theirs.values()]):
            storage.write(ours, token.encode())
            answers = _ask(folder, token, living, theirs)
            for node in living:
                answers[node.id] = answers[node.id] or _echo(storage, theirs[node.id], token)
    except OSError as wrong:
        raise OutputError(
            f"output {folder} cannot be written ({reason(wrong)}); {remedy(wrong, folder)}, or "
            "choose another output"
        ) from wrong
    still = {node.id for node in nodes()}  # one that died meanwhile is no longer our business
    return [(n.name, answers[n.id]) for n in living if answers[n.id] and n.id in still]


def _ask(folder: str, token: str, living: list[Node], names: dict[str, str]) -> dict[str, str]:
    """Run one small task per node; return what went wrong there, empty for nothing."""
    refs = {node.id: run_on(node, _try, folder, token, names[node.id]) for node in living}
    ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=ANSWER_S)
    return {node: _answer(ref, ref in ready) for node, ref in refs.items()}


def _answer(ref: Any, is_ready: bool) -> str:
    if not is_ready:
        with contextlib.suppress(Exception):
            ray.cancel(ref, force=True)
        return f"no answer within {ANSWER_S:g} s"
    try:
        return str(ray.get(ref))
    except Exception as wrong:  # the node died, has no raysim, ...: all of it is "not reachable"
        lines = str(wrong).strip().splitlines() or [type(wrong).__name__]
        return lines[-1].strip()


def _try(folder: str, token: str, name: str) -> str:
    """Read what the driver wrote and write an answer, on a node; return what went wrong."""
    try:
        storage = open_storage(folder)
        if storage.read(f".probe-{token}") != token.encode():
            return "reads other bytes than the driver wrote"
        storage.write(name, token.encode())
    except FileNotFoundError:
        return "does not see what the driver wrote"
    except OSError as wrong:
        return reason(wrong)
    except RaysimError as wrong:
        return str(wrong)
    return ""


def _echo(storage: Storage, name: str, token: str) -> str:
    try:
        same = storage.read(name) == token.encode()
    except FileNotFoundError:
        same = False
    return "" if same else "what it writes does not arrive at the driver"


@contextlib.contextmanager
def _removed(storage: Storage, names: list[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for name in names:
            with contextlib.suppress(OSError):
                storage.remove(name)


@contextlib.contextmanager
def _new_folders_removed(folder: str) -> Iterator[None]:
    """Remove folders that came with the first file, so that a refused run leaves nothing."""
    path = place(folder)
    here = [path, *path.parents] if isinstance(path, Path) else []
    new = [parent for parent in here if not parent.exists()]
    try:
        yield
    finally:
        for parent in new:  # the deepest first
            with contextlib.suppress(OSError):
                parent.rmdir()

"""What the nodes of a cluster say, and whether each of them can use the run's storage.

The functions behind ``raysim doctor --cluster`` that run on the nodes travel by value and import
raysim only inside: a node without raysim, or with another one, can still answer.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError

from raysim.errors import EnvironmentNotFit, OutputError, RaysimError
from raysim.runtime.placement import Node
from raysim.runtime.ray.connection import connect, nodes, run_on
from raysim.settings import RuntimeSettings
from raysim.storage.files import reason
from raysim.storage.objects import Storage, absolute, open_storage, place, remedy

ANSWER_S = 120.0
"""How long a node may take: its first worker process starts and imports torch."""
PINGS = 5
STORAGE_S = 30.0
"""How long a node may take to try a storage; most of it is the start of a worker process."""


@dataclass(frozen=True)
class NodeReport:
    """One node: what it said, and how far its clock is off."""

    node: Node
    facts: dict[str, Any] = field(default_factory=dict)
    wrong: str = ""
    """Why it said nothing; empty: it did."""
    skew_s: float = 0.0
    """Its clock minus the driver's, corrected by half the way there and back."""
    round_trip_s: float = 0.0


def inspect_cluster(address: str) -> list[NodeReport]:
    """Join the cluster and ask every living node."""
    connect(RuntimeSettings(address=address))
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    found = nodes()
    answers = _ask(found, describe_node)
    return [_report(node, answers[node.id]) for node in found]


def unreachable_storage(storage: str) -> list[tuple[str, str]]:
    """Return (address, reason) of the nodes of the joined cluster that do not share a storage."""
    return unreachable(absolute(place(storage)), nodes())


# ---- on the nodes ----------------------------------------------------------------------------


def describe_node() -> dict[str, Any]:
    """Return versions, devices, disk and the numeric fingerprint of the node this runs on."""
    versions = {"python": platform.python_version(), "raysim": _attempt(_raysim_version)}
    return {
        "versions": versions | {name: _version(name) for name in ("ray", "torch", "numpy")},
        "cuda_devices": _attempt(_cuda_devices),
        "cupy": _attempt(_cupy_works) is True,
        "free_bytes": _attempt(_free_bytes),
        "fingerprint": _attempt(_fingerprint),
    }


def _attempt(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as wrong:  # one question without an answer must not cost the others
        return f"{type(wrong).__name__}: {wrong}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _raysim_version() -> str:
    return str(importlib.import_module("raysim").__version__)


def _cuda_devices() -> int:
    torch = importlib.import_module("torch")
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _cupy_works() -> bool:
    return bool(importlib.import_module("cupy").is_available())


def _free_bytes() -> int:
    folder = Path(os.environ.get("RAYSIM_CACHE") or "~/.cache/raysim").expanduser()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _fingerprint() -> str:
    return str(importlib.import_module("raysim.runtime.numerics").numeric_fingerprint())


def tell_time() -> float:
    """Return the node's clock."""
    return time.time()


# ---- asking ----------------------------------------------------------------------------------


def _ask(asked: Sequence[Node], task: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return each node's answer, or the exception that came instead."""
    refs = {node.id: run_on(node, task, *arguments) for node in asked}
    deadline = time.monotonic() + ANSWER_S
    answers: dict[str, Any] = {}
    for node_id, ref in refs.items():
        try:
            answers[node_id] = ray.get(ref, timeout=max(deadline - time.monotonic(), 0.1))
        except GetTimeoutError:
            answers[node_id] = TimeoutError(f"no answer within {ANSWER_S:.0f} s")
        except RayError as wrong:
            answers[node_id] = wrong
    return answers


def _report(node: Node, facts: Any) -> NodeReport:
    """Compare the clock of a node that answered; it may die meanwhile."""
    if isinstance(facts, Exception):
        return NodeReport(node, wrong=_last_line(facts))
    try:
        skew_s, round_trip_s = _clock(node)
    except RayError as wrong:
        return NodeReport(node, wrong=_last_line(wrong))
    return NodeReport(node, facts, "", skew_s, round_trip_s)


def _clock(node: Node) -> tuple[float, float]:
    """Return skew and round trip of the quickest of a few calls."""
    tries = []
    for _ in range(PINGS):
        before, started = time.time(), time.perf_counter()
        there = ray.get(run_on(node, tell_time), timeout=ANSWER_S)
        trip = time.perf_counter() - started
        tries.append((trip, there - (before + trip / 2)))
    trip, skew = min(tries)
    return skew, trip


def _last_line(wrong: Exception) -> str:
    lines = [line for line in str(wrong).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else type(wrong).__name__)[:300]


# ---- storage that every node can use ---------------------------------------------------------


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
            answers = _ask_to_use(folder, token, living, theirs)
            for node in living:
                answers[node.id] = answers[node.id] or _echo(storage, theirs[node.id], token)
    except OSError as wrong:
        raise OutputError(
            f"output {folder} cannot be written ({reason(wrong)}); {remedy(wrong, folder)}, or "
            "choose another output"
        ) from wrong
    still = {node.id for node in nodes()}  # one that died meanwhile is no longer our business
    return [(n.name, answers[n.id]) for n in living if answers[n.id] and n.id in still]


def _ask_to_use(
    folder: str, token: str, living: list[Node], names: dict[str, str]
) -> dict[str, str]:
    """Run one small task per node; return what went wrong there, empty for nothing."""
    refs = {node.id: run_on(node, _use, folder, token, names[node.id]) for node in living}
    ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=STORAGE_S)
    return {node: _usable(ref, ref in ready) for node, ref in refs.items()}


def _usable(ref: Any, is_ready: bool) -> str:
    if not is_ready:
        with contextlib.suppress(Exception):
            ray.cancel(ref, force=True)
        return f"no answer within {STORAGE_S:g} s"
    try:
        return str(ray.get(ref))
    except Exception as wrong:  # the node died, has no raysim, ...: all of it is "not reachable"
        return _last_line(wrong)


def _use(folder: str, token: str, name: str) -> str:
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

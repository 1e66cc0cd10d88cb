"""What every node of a cluster says about itself, for ``raysim doctor --cluster``.

The functions that run on the nodes travel by value and import raysim only inside: a node without
raysim, or with another one, can still answer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import GetTimeoutError, RayError

from raysim.runtime.placement import Node, RuntimeSettings
from raysim.runtime.ray.connection import connect, nodes, run_on
from raysim.runtime.ray.reachable import unreachable
from raysim.storage.objects import absolute, place

ANSWER_S = 120.0
"""How long a node may take: its first worker process starts and imports torch."""
PINGS = 5


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
        return NodeReport(node, wrong=_first_line(facts))
    try:
        skew_s, round_trip_s = _clock(node)
    except RayError as wrong:
        return NodeReport(node, wrong=_first_line(wrong))
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


def _first_line(wrong: Exception) -> str:
    lines = [line for line in str(wrong).strip().splitlines() if line.strip()]
    return (lines[-1] if lines else type(wrong).__name__)[:300]

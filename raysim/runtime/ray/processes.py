"""What runs in the actors' processes: clients and their memory, or the sums of groups."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raysim.core.aggregation import Accumulator, ExactSum, mean, total_weight
from raysim.core.threads import one_thread
from raysim.protocols import ClientId, ClientRecord, Tree, Where, WorldSpec
from raysim.runtime.cohort import Call, Cohort, resolve_with, run_at_server
from raysim.storage.checkpoint import read_object, write_object


@dataclass(frozen=True)
class RayHandle:
    """A tree in Ray's object store."""

    ref: Any
    nbytes: int


def fetch(handles: Sequence[RayHandle]) -> list[Any]:
    """Return the trees behind handles."""
    trees: list[Any] = ray.get([handle.ref for handle in handles])
    return trees


resolve = resolve_with(fetch, RayHandle)


class Process:
    """What both kinds of actors can do: keep models, and say where they are."""

    def save_models(self, folder: str, handles: Mapping[str, Any]) -> dict[str, str]:
        """Write models; the driver never receives them."""
        return {name: write_object(folder, resolve(h)) for name, h in sorted(handles.items())}

    def load_models(self, folder: str, digests: Sequence[str]) -> Any:
        """Read stored models: (their sizes, then the trees)."""
        trees = [read_object(folder, digest) for digest in digests]
        return ([sum(a.nbytes for a in tree.values()) for tree in trees], *trees)

    def describe(self) -> dict[str, Any]:
        """Actor id, process id, node and GPU slice of this actor."""
        return describe_process()


class ClientActor(Process):
    """Hosts one client, or many. Rebuilt from these arguments when it is lost."""

    def __init__(
        self,
        records: Sequence[ClientRecord],
        spec: WorldSpec,
        *,
        gpus: float,
        warm: Sequence[str] = (),
    ) -> None:
        if not gpus:
            # Ray leaves this variable alone for actors without GPUs, and torch would then see
            # them all.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        for module in warm:
            importlib.import_module(module)
        self._cohort = Cohort(records, spec.open())

    def run(self, call: Call, num_servers: int, *lent: Mapping[ClientId, Tree]) -> Any:
        """Run a map: (replies, changed). Run a reduce: that, then one partial sum per server.

        Run a keep: (sizes, changed), then one tree per client. ``lent`` is the memory of the call's
        guests, from the actors that host them.
        """
        guests = {k: memory for part in lent for k, memory in part.items()}
        outcome = self._cohort.run(call, resolve, guests)
        if call.keeps:
            trees = {k: mean(outcome.sums[k]) for k in call.on}
            sizes = {k: sum(a.nbytes for a in tree.values()) for k, tree in trees.items()}
            return ((sizes, outcome.changed), *trees.values())
        head = (outcome.replies, outcome.changed)
        if call.groups is None:
            return head
        parts: list[dict[int, Any]] = [{} for _ in range(num_servers)]
        for group, total in outcome.sums.items():
            parts[group % num_servers][group] = total
        return (head, *parts)

    def merge(self, *parts: Mapping[int, ExactSum]) -> dict[int, ExactSum]:
        """Return the partial sums of this node's actors as one, by group."""
        with one_thread():
            return _merged(sorted({g for part in parts for g in part}), parts)

    def lend(self, clients: Sequence[ClientId]) -> dict[ClientId, Tree]:
        """Return the memory of clients that train elsewhere in this round."""
        return self._cohort.lend(clients)

    def adopt(
        self,
        records: Sequence[ClientRecord],
        folder: str,
        shards: Mapping[str, Sequence[ClientId]],
        calls: Sequence[Call],
    ) -> None:
        """Take clients over: memory from a commit, and the calls since then again."""
        self._cohort.adopt(records, folder, shards, calls, resolve)

    def release(self, clients: Sequence[ClientId]) -> None:
        """Forget clients that moved away."""
        self._cohort.release(clients)

    def save(self, folder: str, number: int) -> tuple[str, list[ClientId]] | None:
        """Write changed memory; asked again for the same ``number``, answer the same."""
        return self._cohort.save(folder, number)

    def load(self, folder: str, shards: Mapping[str, Sequence[ClientId]], number: int) -> None:
        self._cohort.load(folder, shards)


class ParameterServer(Process):
    """Aggregates the groups that live on it.

    It keeps nothing between calls, so losing it loses nothing. NumPy only: it never imports torch
    for its own sake.
    """

    def __init__(self) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray would let an actor without GPUs see them all

    def combine(self, groups: Sequence[int], *parts: Mapping[int, ExactSum]) -> Any:
        """Return (when this began and ended, weights and sizes), then the groups' mean trees."""
        began = time.time()
        with one_thread():
            totals = _merged(groups, parts)
            means = [mean(totals[g]) for g in groups]
        facts = {
            g: (total_weight(totals[g]), sum(a.nbytes for a in tree.values()))
            for g, tree in zip(groups, means, strict=True)
        }
        return (((began, time.time()), facts), *means)

    def run(self, task: Callable[..., Any], shared: Mapping[str, Any], where: Where | None) -> Any:
        return run_at_server(task, resolve(dict(shared)), where)

    def derive(
        self, task: Callable[..., Any], shared: Mapping[str, Any], where: Where | None
    ) -> Any:
        """Run a server-side function that returns a tree: (its size, the tree)."""
        tree = self.run(task, shared, where)
        return sum(a.nbytes for a in tree.values()), tree


def _merged(groups: Sequence[int], parts: Sequence[Mapping[int, ExactSum]]) -> dict[int, ExactSum]:
    totals = {}
    for g in groups:
        total = Accumulator()
        for part in parts:
            if g in part:
                total.add(part[g])
        totals[g] = total.take()
    return totals


def describe_process() -> dict[str, Any]:
    """Actor id, process id, node and GPU slice of the calling actor."""
    context = ray.get_runtime_context()
    return {
        "actor": context.get_actor_id(),
        "pid": os.getpid(),
        "node": ray.util.get_node_ip_address(),
        "node_id": context.get_node_id(),
        "gpu_ids": [str(g) for g in ray.get_gpu_ids()],
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }

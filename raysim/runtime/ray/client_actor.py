"""The actor that hosts a cohort of clients on its CPU share or GPU slice."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raysim.core.aggregation import mean
from raysim.protocols import ClientId, ClientRecord, Tree, WorldSpec
from raysim.runtime.cohort import Call, Cohort, resolve_with


@dataclass(frozen=True)
class RayHandle:
    """A tree in Ray's object store."""

    ref: Any
    nbytes: int


def fetch(handle: RayHandle) -> Any:
    """Return the tree behind a handle."""
    return ray.get(handle.ref)


resolve = resolve_with(fetch, RayHandle)


class ClientActor:
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
        self.assign(records, spec, warm)

    def assign(self, records: Sequence[ClientRecord], spec: WorldSpec, warm: Sequence[str]) -> None:
        """Host other clients from now on."""
        for module in warm:
            importlib.import_module(module)
        self._cohort = Cohort(records, spec.open())

    def release(self) -> None:
        """Let go of the clients, their memory and their caches."""
        del self._cohort

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

    def lend(self, clients: Sequence[ClientId]) -> dict[ClientId, Tree]:
        """Return the memory of clients that train elsewhere in this round."""
        return self._cohort.lend(clients)

    def save(self, folder: str, number: int) -> tuple[str, list[ClientId]] | None:
        """Write changed memory; asked again for the same ``number``, answer the same."""
        return self._cohort.save(folder, number)

    def load(self, folder: str, shards: Mapping[str, Sequence[ClientId]]) -> None:
        """Take memory back from a commit."""
        self._cohort.load(folder, shards)

    def describe(self) -> dict[str, Any]:
        """Where this actor is and what it is pinned to."""
        return describe_process()


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

"""All clients in this process, one after another: nothing to start, the same bits as Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.core.aggregation import mean, total_weight
from raysim.protocols import (
    ClientId,
    ClientRecord,
    GroupId,
    GroupResult,
    Handle,
    Reduced,
    Task,
    Tree,
    Where,
    WorldSpec,
)
from raysim.runtime.cohort import Call, Cohort, merge_shards, resolve_with, run_at_server
from raysim.storage.checkpoint import read_object, write_object


@dataclass(frozen=True)
class LocalHandle:
    """A tree kept in this process."""

    tree: Tree

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.tree.values())


def _kept(tree: dict[str, np.ndarray]) -> LocalHandle:
    """Return a handle of read-only arrays: a task must not change what others get, as with Ray."""
    for array in tree.values():
        array.flags.writeable = False
    return LocalHandle(tree)


_resolve = resolve_with(lambda handles: [handle.tree for handle in handles], LocalHandle)


class LocalFederation:
    """``Federation`` without Ray."""

    def __init__(self, records: Sequence[ClientRecord], spec: WorldSpec) -> None:
        self.clients: Sequence[ClientId] = sorted(r.id for r in records)
        self._cohort = Cohort(records, spec.open())
        self._shards: dict[str, list[ClientId]] = {}
        self.where: Where | None = None
        self.restarts = 0
        self.unsettled = False
        self.late: list[ClientId] = []

    def map(
        self,
        task: Task,
        *,
        on: Iterable[ClientId] | None = None,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Any]:
        ids = tuple(sorted(self.clients if on is None else on))
        return self._cohort.run(
            Call(task, ids, shared, each or {}, None, self.where), _resolve
        ).replies

    def reduce(
        self,
        task: Task,
        *,
        groups: Mapping[ClientId, GroupId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Reduced:
        call = Call(task, tuple(sorted(groups)), shared, each or {}, groups, self.where)
        outcome = self._cohort.run(call, _resolve)
        results = {
            g: GroupResult(_kept(mean(total)), total_weight(total))
            for g, total in sorted(outcome.sums.items())
        }
        return Reduced(results, outcome.replies)

    def keep(
        self,
        task: Task,
        *,
        on: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Handle]:
        call = Call(task, tuple(sorted(on)), shared, each or {}, None, self.where, keeps=True)
        sums = self._cohort.run(call, _resolve).sums
        return {k: _kept(mean(sums[k])) for k in call.on}

    def serve(self, task: Callable[..., Any], *, server: int = 0, **shared: Any) -> Any:
        """Run a function here: the server is this process too."""
        return run_at_server(task, _resolve(shared), self.where)

    def derive(self, task: Callable[..., Tree], *, server: int = 0, **shared: Any) -> Handle:
        """Run a function here and keep its tree."""
        return self.put(self.serve(task, server=server, **shared))

    def put(self, tree: Tree) -> Handle:
        return _kept({name: np.array(array) for name, array in tree.items()})

    def get(self, handle: Handle) -> Tree:
        tree: Tree = _resolve(handle)
        return tree

    def commit(self, folder: str, models: Mapping[str, Handle]) -> dict[str, Any]:
        saved = self._cohort.save(folder)
        self._shards = merge_shards(self._shards, [saved] if saved else [])
        stored = {name: write_object(folder, self.get(h)) for name, h in sorted(models.items())}
        return {"memory": self._shards, "models": stored}

    def settle(
        self, folder: str, stored: Mapping[str, str], models: Mapping[str, Handle]
    ) -> dict[str, Handle]:
        """Do nothing: everything stays in this process."""
        return {}

    def restore(self, folder: str, manifest: Mapping[str, Any]) -> dict[str, Handle]:
        self._shards = dict(manifest["memory"])
        self._cohort.load(folder, self._shards)
        return {n: self.put(read_object(folder, d)) for n, d in manifest["models"].items()}

    def describe(self) -> list[dict[str, Any]]:
        count = len(self.clients)
        row = {"actor": "driver", "role": "clients", "pid": os.getpid(), "node": "this process"}
        return [{**row, "share": "1 thread", "clients": count}]

    def close(self) -> None:
        """Do nothing: there are no actors."""

"""The parameter servers: actors that turn partial sums into group models.

They use NumPy only and never import torch for their own sake. They are asked one at a time, and
replaced when lost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from raysim.core.aggregation import Accumulator, ExactSum, mean, total_weight
from raysim.core.threads import one_thread
from raysim.protocols import Where
from raysim.runtime.cohort import run_at_server
from raysim.runtime.placement import Node
from raysim.runtime.ray.client_actors import describe_process, resolve
from raysim.runtime.ray.connection import on_node
from raysim.runtime.ray.failures import FAILED, LOST, Losses, original, refuse_lost_objects
from raysim.settings import RuntimeSettings
from raysim.storage.checkpoint import read_object, write_object


class ParameterServer:
    """Aggregates the groups that live on it.

    It keeps nothing between calls, so losing it loses nothing.
    """

    def __init__(self) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray would let an actor without GPUs see them all

    def combine(self, groups: Sequence[int], *parts: Mapping[int, Any]) -> Any:
        """Return (weights and sizes by group, then the mean tree of each of ``groups``)."""
        with one_thread():
            totals = {g: _merged([p[g] for p in parts if g in p]) for g in groups}
            means = [mean(totals[g]) for g in groups]
        facts = {
            g: (total_weight(totals[g]), sum(a.nbytes for a in tree.values()))
            for g, tree in zip(groups, means, strict=True)
        }
        return (facts, *means)

    def run(self, task: Callable[..., Any], shared: Mapping[str, Any], where: Where | None) -> Any:
        return run_at_server(task, resolve(dict(shared)), where)

    def derive(
        self, task: Callable[..., Any], shared: Mapping[str, Any], where: Where | None
    ) -> Any:
        """Run a server-side function that returns a tree: (its size, the tree)."""
        tree = self.run(task, shared, where)
        return sum(a.nbytes for a in tree.values()), tree

    def save(self, folder: str, handles: Mapping[str, Any]) -> dict[str, str]:
        """Write models; the driver never receives them."""
        return {name: write_object(folder, resolve(h)) for name, h in sorted(handles.items())}

    def load(self, folder: str, digest: str) -> Any:
        """Read a stored model: (its size, the tree)."""
        tree = read_object(folder, digest)
        return sum(a.nbytes for a in tree.values()), tree

    def describe(self) -> dict[str, Any]:
        return describe_process()


_Remote = ray.remote(ParameterServer)


def _merged(parts: Sequence[ExactSum]) -> ExactSum:
    total = Accumulator()
    for part in parts:
        total.add(part)
    return total.take()


class Servers:
    """Parameter servers; they keep nothing between calls, so a new one can go on at once."""

    def __init__(self, homes: Sequence[Node], runtime: RuntimeSettings) -> None:
        self.actors = [_new(on_node(home)) for home in homes]
        self.losses = Losses("parameter server", len(homes), runtime.max_restarts)
        self.rows: list[dict[str, Any]] = []

    def ask(
        self, server: int, method: str, *arguments: Any, where: Where | None, num_returns: int = 1
    ) -> list[Any]:
        """Call a server; return [first reference, its value, other references...]."""
        while True:
            call = getattr(self.actors[server], method).options(num_returns=num_returns)
            refs = call.remote(*arguments)
            refs = [refs] if num_returns == 1 else list(refs)
            try:
                return [refs[0], ray.get(refs[0]), *refs[1:]]
            except LOST as wrong:
                refuse_lost_objects(wrong)
                node = self.rows[server]["node"]
                self.losses.allow(server, wrong, where=where, during=method, node=node)
                self._replace(server)
            except FAILED as wrong:
                raise original(wrong) from wrong

    def describe(self, facts: Sequence[dict[str, Any]]) -> None:
        """Take what the servers say about themselves."""
        self.rows = [_row(fact) for fact in facts]

    def end(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

    def _replace(self, server: int) -> None:
        with contextlib.suppress(*LOST):  # it may be alive, only out of reach
            ray.kill(self.actors[server])
        self.actors[server] = _new("DEFAULT")
        with contextlib.suppress(*LOST):  # lost as well: the next call finds out and replaces it
            self.rows[server] = _row(ray.get(self.actors[server].describe.remote()))


def _new(strategy: Any) -> Any:
    options = {"num_cpus": 0, "num_gpus": 0, "max_restarts": 0, "scheduling_strategy": strategy}
    return _Remote.options(**options, enable_task_events=False).remote()


def _row(fact: dict[str, Any]) -> dict[str, Any]:
    return {"role": "server", **fact, "share": "0 CPU", "clients": 0}

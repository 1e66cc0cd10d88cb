"""The actor that turns partial sums into group models.

NumPy only: it never imports torch for its own sake.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raysim.core.aggregation import Accumulator, ExactSum, mean, weight_of
from raysim.protocols import Where
from raysim.runtime.cohort import run_at_server, single_threaded
from raysim.runtime.ray.client_actor import describe_process, resolve
from raysim.storage.checkpoint import read_object, write_object


class ParameterServer:
    """Aggregates the groups that live on it.

    It keeps nothing between calls, so losing it loses nothing.
    """

    def __init__(self) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray would let an actor without GPUs see them all

    def combine(self, groups: Sequence[int], *parts: Mapping[int, Any]) -> Any:
        """Return (weights and sizes by group, then the mean tree of each of ``groups``)."""
        with single_threaded():
            totals = {g: _merged([p[g] for p in parts if g in p]) for g in groups}
            means = [mean(totals[g]) for g in groups]
        facts = {
            g: (weight_of(totals[g]), sum(a.nbytes for a in tree.values()))
            for g, tree in zip(groups, means, strict=True)
        }
        return (facts, *means)

    def run(self, task: Callable[..., Any], shared: Mapping[str, Any], where: Where | None) -> Any:
        """Run a server-side function."""
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
        """Where this actor is."""
        return describe_process()


def _merged(parts: Sequence[ExactSum]) -> ExactSum:
    total = Accumulator()
    for part in parts:
        total.add(part)
    return total.take()

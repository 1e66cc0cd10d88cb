"""The parameter-server actors: asked one at a time, replaced when lost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray

from raysim.protocols import Where
from raysim.runtime.placement import Node, RuntimeSettings
from raysim.runtime.ray.connection import on_node
from raysim.runtime.ray.failures import FAILED, LOST, Losses, original, refuse_lost_objects
from raysim.runtime.ray.parameter_server import ParameterServer


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
        """End the actors."""
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
    return ray.remote(ParameterServer).options(**options, enable_task_events=False).remote()


def _row(fact: dict[str, Any]) -> dict[str, Any]:
    return {"role": "server", **fact, "share": "0 CPU", "clients": 0}

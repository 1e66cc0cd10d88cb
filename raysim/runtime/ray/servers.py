"""The parameter servers: where they are, which groups are theirs, asked at the same time.

They keep nothing between calls: a lost one is replaced, and the same question asked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError

from raysim.protocols import Where
from raysim.runtime.placement import MOST_SERVERS, Node, near
from raysim.runtime.ray.connection import draining, nodes, on_node
from raysim.runtime.ray.failures import FAILED, LOST, Losses, original, refuse_lost_objects
from raysim.runtime.ray.processes import ParameterServer
from raysim.runtime.ray.seats import Names
from raysim.settings import RuntimeSettings

_Remote = ray.remote(ParameterServer)


@dataclass(frozen=True)
class Question:
    """What one server is asked."""

    server: int
    method: str
    arguments: tuple[Any, ...]
    num_returns: int = 1


class Servers:
    """Parameter servers; group m belongs to server m mod their number."""

    def __init__(self, homes: Sequence[Node], runtime: RuntimeSettings, names: Names) -> None:
        self._names = names
        self._is_auto = runtime.servers == "auto"
        self.losses = Losses("parameter server", runtime.max_restarts)
        self.actors: list[Any] = []
        self.rows: list[dict[str, Any]] = []
        self._asked: list[Any] = []
        self.intervals: dict[int, tuple[float, float]] = {}
        """When each server began and ended its part of the last reduce, by its own clock."""
        self._start(homes)

    def _start(self, homes: Sequence[Node]) -> None:
        self.actors, self._asked = [None] * len(homes), [None] * len(homes)
        self.rows = [{} for _ in homes]
        for server, home in enumerate(homes):
            self._begin(server, home)

    def _begin(self, server: int, home: Node) -> None:
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0, "max_restarts": 0}
        first = self._is_auto and len(self.actors) == 1
        name = self._names.options("server" if first else f"server-group-{server}")
        row = {"role": "server", "name": name["name"], "node_id": home.id, "node": home.name}
        self.rows[server] = row
        options |= {"scheduling_strategy": on_node(home), "enable_task_events": False, **name}
        self.actors[server] = _Remote.options(**options).remote()
        self._asked[server] = self.actors[server].describe.remote()

    def divide(self, groups: Sequence[int], clients: Mapping[int, Mapping[str, int]]) -> None:
        """Start a server per group once groups are known; ``clients``: of each, by node id.

        Groups may change later: then their models move, and the servers stay.
        """
        if not self._is_auto or len(groups) < 2:
            return
        self._is_auto = False
        living = nodes()
        workers = [node for node in living if not node.is_head] or living
        count = min(max(groups) + 1, MOST_SERVERS * len(workers))
        if len(living) < 2 or count < 2:
            return
        wanted: list[dict[str, int]] = [{} for _ in range(count)]
        for group, on_node_id in clients.items():
            own = wanted[group % count]
            for node_id, number in on_node_id.items():
                own[node_id] = own.get(node_id, 0) + number
        self.end()
        self._start(near(living, wanted))

    def ask(self, questions: Sequence[Question], *, where: Where | None) -> list[list[Any]]:
        """Ask servers at the same time; return [first answer, other references...] of each."""
        asked = [(question, self._send(question)) for question in questions]
        return [self._wait(question, refs, where) for question, refs in asked]

    def _send(self, question: Question) -> list[Any]:
        actor = self.actors[question.server]
        call = getattr(actor, question.method).options(num_returns=question.num_returns)
        refs = call.remote(*question.arguments)
        return [refs] if question.num_returns == 1 else list(refs)

    def _wait(self, question: Question, refs: list[Any], where: Where | None) -> list[Any]:
        server, actor = question.server, self.actors[question.server]
        while True:
            try:
                return [ray.get(refs[0]), *refs[1:]]
            except LOST as wrong:
                refuse_lost_objects(wrong)
                if self.actors[server] is actor:  # not replaced for another question
                    row, during = self.rows[server], question.method
                    self.losses.allow(
                        *(server, wrong),
                        **{"where": where, "during": during, "node": row["node"]},
                        announced=row["node_id"] in draining(),
                    )
                    gone = {row["node_id"]} if isinstance(wrong, ActorUnavailableError) else set()
                    self._replace(server, gone)
            except FAILED as wrong:
                raise original(wrong) from wrong
            actor, refs = self.actors[server], self._send(question)

    def describe(self) -> list[dict[str, Any]]:
        """Return what the servers say about themselves, for people."""
        for server, ref in enumerate(self._asked):
            if ref is not None:
                with contextlib.suppress(*LOST):  # found out when it is asked
                    self.rows[server] |= ray.get(ref)
                self._asked[server] = None
        return [{**row, "share": "0 CPU", "clients": 0} for row in self.rows]

    def leave(self, leaving: set[str]) -> None:
        """Replace the servers on nodes that drain."""
        for server, row in enumerate(self.rows):
            if row["node_id"] in leaving:
                self._replace(server, leaving)

    def end(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

    def _replace(self, server: int, gone: set[str]) -> None:
        with contextlib.suppress(*LOST):  # it may be alive, only out of reach
            ray.kill(self.actors[server])
        living = nodes()
        others = [{row["node_id"]: 1} for s, row in enumerate(self.rows) if s != server]
        places = [node for node in living if node.id not in gone] or living
        home = near(places, [*others, {self.rows[server]["node_id"]: 1}])[-1]
        self._begin(server, home)

"""``Federation`` on Ray actors.

Clients live in cohorts (``client_actors``), partial sums go to parameter servers (``servers``). The
driver sends one call per actor and keeps models behind handles.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from raysim.errors import ConfigError, EnvironmentNotFit, ModelsLost
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
from raysim.runtime.cohort import Call, merge_shards
from raysim.runtime.placement import plan
from raysim.runtime.ray.client_actors import ClientActors, Part
from raysim.runtime.ray.connection import connect, nodes
from raysim.runtime.ray.failures import FAILED, LOST, original
from raysim.runtime.ray.hosts import Hosts
from raysim.runtime.ray.processes import RayHandle, fetch
from raysim.runtime.ray.seats import Names
from raysim.runtime.ray.servers import Question, Servers
from raysim.settings import RuntimeSettings

MANY_MODELS = 8
"""Models per server from which on the client actors write them."""


class RayFederation:
    """Clients on actors."""

    def __init__(
        self,
        records: Sequence[ClientRecord],
        spec: WorldSpec,
        runtime: RuntimeSettings,
        *,
        warm: Sequence[str] = (),
        name: str = "run",
    ) -> None:
        """Start the actors; they and this process import the modules ``warm`` meanwhile."""
        connect(runtime)
        records = sorted(records, key=lambda r: r.id)
        self.clients: Sequence[ClientId] = [r.id for r in records]
        self.where: Where | None = None
        self._shards: dict[str, list[ClientId]] = {}
        layout = plan([len(r.sample_ids) for r in records], nodes(), runtime)
        self.runtime = layout.runtime
        """The settings with the share of an actor worked out."""
        self._names = Names(name)
        self._hosts = Hosts(records, spec, layout, self._names, warm)
        self._clients = ClientActors(self._hosts, runtime)
        self._servers = Servers(layout.servers, runtime, self._names)
        try:
            for module in warm:
                importlib.import_module(module)
            self._wait_for_start()
        except BaseException:  # so that nobody waits for places that this run holds
            self.close()
            raise

    @property
    def restarts(self) -> int:
        """Actors rebuilt so far."""
        return self._hosts.losses.restarts + self._servers.losses.restarts

    @property
    def late(self) -> list[ClientId]:
        """Clients that missed a round since this list was last emptied."""
        return self._clients.late

    @property
    def unsettled(self) -> bool:
        """Whether actors or nodes came or went since the last commit."""
        self._hosts.look()
        return self._hosts.unsettled

    # ---- the Federation interface ----------------------------------------------------------

    def map(
        self,
        task: Task,
        *,
        on: Iterable[ClientId] | None = None,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Any]:
        ids = self.clients if on is None else on
        call = self._call(task, ids, shared, each, None)
        return self._clients.run(call, len(self._servers.actors))[0]

    def reduce(
        self,
        task: Task,
        *,
        groups: Mapping[ClientId, GroupId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Reduced:
        """Run a task on clients.

        Partial sums go from the actors to the servers, not through the driver.
        """
        call = self._call(task, groups, shared, each, groups)
        if self.runtime.round_deadline_s is not None and not call.may_be_missed:
            raise ConfigError(
                f"runtime.round_deadline_s is {self.runtime.round_deadline_s:g}, but "
                f"{task.__name__} does not say that it leaves its clients' memory as it is; "
                "declare it with raysim.protocols.stateless if it does (a method: stateless = "
                "True), or drop runtime.round_deadline_s and runtime.quorum"
            )
        of_group = members_by_group(groups)
        if len(of_group) < len(groups):  # else every client is a group of its own
            self._servers.divide(list(of_group), {g: self._at(on) for g, on in of_group.items()})
        count = len(self._servers.actors)
        replies, parts = self._clients.run(call, count)
        mine: dict[int, list[GroupId]] = {}
        for g in sorted({groups[k] for k in replies}):
            mine.setdefault(g % count, []).append(g)
        try:
            answers = self._combine(mine, self._merged(parts, list(mine)))
        except ModelsLost:  # who merged them may have died; what was merged is still there
            answers = self._combine(mine, {s: [p.refs[1 + s] for p in parts] for s in mine})
        results: dict[GroupId, GroupResult] = {}
        for s, ((interval, facts), *means) in zip(mine, answers, strict=True):
            self._servers.intervals[s] = interval
            for g, ref in zip(mine[s], means, strict=True):
                weight, nbytes = facts[g]
                results[g] = GroupResult(RayHandle(ref, nbytes), weight)
        return Reduced(dict(sorted(results.items())), replies)

    def _combine(
        self, groups: Mapping[int, list[GroupId]], sums: Mapping[int, list[Any]]
    ) -> list[list[Any]]:
        """Ask each server for the means of its groups, all at the same time."""
        questions = [
            Question(s, "combine", (own, *sums[s]), num_returns=1 + len(own))
            for s, own in groups.items()
        ]
        return self._servers.ask(questions, where=self.where)

    def _merged(self, parts: Sequence[Part], servers: Sequence[int]) -> dict[int, list[Any]]:
        """Return partial sums by server, those of one node as one: less travels."""
        by_node: dict[str, list[Part]] = {}
        for one in parts:
            by_node.setdefault(one.host.row["node_id"], []).append(one)
        sums: dict[int, list[Any]] = {s: [] for s in servers}
        for s in servers:
            for node_id, here in by_node.items():
                refs = [one.refs[1 + s] for one in here]
                host = here[s % len(here)].host
                stays = node_id == self._servers.rows[s]["node_id"]
                if len(refs) > 1 and not stays and host.is_there:
                    refs = [host.actor.merge.remote(*refs)]
                sums[s] += refs
        return sums

    def _at(self, clients: Iterable[ClientId]) -> Counter[str]:
        """Return how many of some clients live on which node, by its id."""
        return Counter(str(self._hosts.home[k].row.get("node_id")) for k in clients)

    def keep(
        self,
        task: Task,
        *,
        on: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Handle]:
        """Run a task on clients; each one's tree stays in the object store of its actor's node."""
        call = replace(self._call(task, on, shared, each, None), keeps=True)
        sizes, parts = self._clients.run(call, 0)
        refs = {k: r for p in parts for k, r in zip(p.call.on, p.refs[1:], strict=True)}
        return {k: RayHandle(refs[k], nbytes) for k, nbytes in sizes.items()}

    def serve(self, task: Callable[..., Any], *, server: int = 0, **shared: Any) -> Any:
        return self._ask(server, "run", task, shared, self.where)[0]

    def derive(self, task: Callable[..., Tree], *, server: int = 0, **shared: Any) -> Handle:
        """Run a function on a parameter server; its tree goes from there to the object store."""
        nbytes, ref = self._ask(server, "derive", task, shared, self.where, num_returns=2)
        return RayHandle(ref, nbytes)

    def put(self, tree: Tree) -> Handle:
        return RayHandle(ray.put(dict(tree)), sum(a.nbytes for a in tree.values()))

    def get(self, handle: Handle) -> Tree:
        assert isinstance(handle, RayHandle)
        try:
            tree: Tree = fetch([handle])[0]
        except (*LOST, *FAILED) as wrong:
            raise original(wrong) from wrong
        return tree

    def commit(self, folder: str, models: Mapping[str, Handle]) -> dict[str, Any]:
        """Have actors write their memory, and servers the models of their groups."""
        saved = self._clients.save(folder, self.where)
        shards = merge_shards(self._shards, saved)
        stored = self._saved_by_clients(folder, models)
        left = {name: handle for name, handle in models.items() if name not in stored}
        questions = [
            Question(s, "save_models", (folder, {name: left[name] for name in names}))
            for s, names in self._owned(left).items()
        ]
        for answer in self._servers.ask(questions, where=self.where):
            stored.update(answer[0])
        self._shards = shards
        self._clients.committed(folder, shards)
        self._servers.losses.forgive()
        return {"memory": shards, "models": dict(sorted(stored.items()))}

    def _saved_by_clients(self, folder: str, models: Mapping[str, Handle]) -> dict[str, str]:
        """Have client actors write models where servers would have many each; return digests.

        What an actor that dies leaves undone is missing.
        """
        hosts, names = self._hosts.there(), sorted(models)
        if len(names) <= MANY_MODELS * len(self._servers.actors):
            return {}
        refs = [
            host.actor.save_models.remote(folder, {n: models[n] for n in names[i :: len(hosts)]})
            for i, host in enumerate(hosts)
        ]
        stored: dict[str, str] = {}
        for ref in refs:
            try:
                stored.update(ray.get(ref))
            except LOST:
                continue
            except FAILED as wrong:
                raise original(wrong) from wrong
        return stored

    def settle(
        self, folder: str, stored: Mapping[str, str], models: Mapping[str, Handle]
    ) -> dict[str, Handle]:
        """After a commit: clients, servers and models leave nodes that go, clients join new ones.

        Return handles of the models that moved.
        """
        if not self.unsettled:
            return {}
        leaving = self._hosts.settle(self.where)
        self._servers.leave(leaving)
        if not leaving:
            return {}
        refs = {name: h.ref for name, h in models.items() if isinstance(h, RayHandle)}
        found = ray.experimental.get_object_locations(list(refs.values()))
        places = {name: set(found[ref]["node_ids"]) for name, ref in refs.items()}
        going = {name: stored[name] for name, at in places.items() if at and at <= leaving}
        return self._load(folder, going)

    def restore(self, folder: str, manifest: Mapping[str, Any]) -> dict[str, Handle]:
        self._shards = dict(manifest["memory"])
        self._clients.go_back(folder, self._shards, self.where)
        return self._load(folder, manifest["models"])

    def _load(self, folder: str, digests: Mapping[str, str]) -> dict[str, Handle]:
        """Have servers read stored models."""
        owned = self._owned(digests)
        questions = [
            Question(s, "load_models", (folder, [digests[n] for n in names]), 1 + len(names))
            for s, names in owned.items()
        ]
        models: dict[str, Handle] = {}
        answers = self._servers.ask(questions, where=self.where)
        for names, (sizes, *refs) in zip(owned.values(), answers, strict=True):
            models |= {n: RayHandle(r, b) for n, r, b in zip(names, refs, sizes, strict=True)}
        return models

    def _owned(self, names: Iterable[str]) -> dict[int, list[str]]:
        """Return the models of each server: those of its groups, and its share of the others."""
        owned: dict[int, list[str]] = {}
        for i, name in enumerate(sorted(names)):
            number = name.rpartition("/")[2]
            server = int(number) if number.isdecimal() else i
            owned.setdefault(server % len(self._servers.actors), []).append(name)
        return owned

    def describe(self) -> list[dict[str, Any]]:
        """One row per actor, and one for the coordinator: this process."""
        context = ray.get_runtime_context()
        coordinator = {
            **{"actor": "driver", "role": "coordinator", "name": self._names.run},
            **{"pid": os.getpid(), "node": ray.util.get_node_ip_address()},
            **{"node_id": context.get_node_id(), "gpu_ids": [], "share": "-", "clients": 0},
        }
        return [*self._hosts.rows(), *self._servers.describe(), coordinator]

    def close(self) -> None:
        """End the actors and give their places back; the Ray session stays."""
        if ray.is_initialized():
            self._hosts.end()
            self._servers.end()

    # ---- inside ----------------------------------------------------------------------------

    def _call(
        self,
        task: Task,
        ids: Iterable[ClientId],
        shared: Mapping[str, Any],
        each: Mapping[ClientId, Mapping[str, Any]] | None,
        groups: Mapping[ClientId, GroupId] | None,
    ) -> Call:
        return Call(task, tuple(sorted(ids)), shared, each or {}, groups, self.where)

    def _ask(self, server: int, method: str, *arguments: Any, num_returns: int = 1) -> list[Any]:
        question = Question(server % len(self._servers.actors), method, arguments, num_returns)
        return self._servers.ask([question], where=self.where)[0]

    def _wait_for_start(self) -> None:
        """Wait until every actor answers; one that cannot be placed would wait for ever."""
        hosts = [host for host in self._hosts.all if host.coming is None]
        refs = waiting = [host.actor.describe.remote() for host in hosts]
        seconds = self.runtime.start_timeout_s
        while waiting:
            started, waiting = ray.wait(waiting, num_returns=1, timeout=seconds)
            if not started:
                raise EnvironmentNotFit(
                    f"{len(waiting)} of {len(hosts)} client actors did not start within "
                    f"runtime.start_timeout_s = {seconds:g} s of the one before; lower "
                    "runtime.actors, or raise runtime.start_timeout_s (a node that makes its data "
                    "first needs longer)"
                )
        try:
            facts = ray.get(refs)
        except (*LOST, *FAILED) as wrong:
            raise original(wrong) from wrong
        for host, fact in zip(hosts, facts, strict=True):
            self._hosts.describe(host, fact)
        self._servers.describe()


def members_by_group(groups: Mapping[ClientId, GroupId]) -> dict[GroupId, list[ClientId]]:
    members: dict[GroupId, list[ClientId]] = {}
    for k, group in groups.items():
        members.setdefault(group, []).append(k)
    return members

"""``Federation`` on Ray actors.

Clients live in cohorts (``client_actors``), partial sums go to parameter servers (``servers``). The
driver sends one call per actor and keeps models behind handles.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from raysim.errors import ConfigError, EnvironmentNotFit
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
from raysim.runtime.ray.client_actors import ClientActors, RayHandle, fetch
from raysim.runtime.ray.connection import connect, nodes
from raysim.runtime.ray.failures import FAILED, LOST, original
from raysim.runtime.ray.servers import Servers
from raysim.settings import RuntimeSettings


class RayFederation:
    """Clients on actors."""

    def __init__(
        self,
        records: Sequence[ClientRecord],
        spec: WorldSpec,
        runtime: RuntimeSettings,
        *,
        warm: Sequence[str] = (),
    ) -> None:
        """Start the actors; they and this process import the modules ``warm`` meanwhile."""
        connect(runtime)
        records = sorted(records, key=lambda r: r.id)
        self.clients: Sequence[ClientId] = [r.id for r in records]
        self.where: Where | None = None
        self._runtime = runtime
        self._shards: dict[str, list[ClientId]] = {}
        self._numbers = itertools.count()
        layout = plan([len(r.sample_ids) for r in records], nodes(), runtime)
        self._hosts = ClientActors(records, spec, layout, runtime, warm)
        self._servers = Servers(layout.servers, runtime)
        for module in warm:
            importlib.import_module(module)
        self._wait_for_start()

    @property
    def restarts(self) -> int:
        """Actors rebuilt so far."""
        return self._hosts.losses.restarts + self._servers.losses.restarts

    @property
    def late(self) -> list[ClientId]:
        """Clients that missed a round since this list was last emptied."""
        return self._hosts.late

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
        return self._hosts.run(call, len(self._servers.actors))[0]

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
        if self._runtime.round_deadline_s is not None and not call.may_be_missed:
            raise ConfigError(
                f"runtime.round_deadline_s is {self._runtime.round_deadline_s:g}, but "
                f"{task.__name__} does not say that it leaves its clients' memory as it is; "
                "declare it with raysim.protocols.stateless if it does (a method: stateless = "
                "True), or drop runtime.round_deadline_s and runtime.quorum"
            )
        count = len(self._servers.actors)
        replies, parts = self._hosts.run(call, count)
        present = {groups[k] for k in replies}
        results: dict[GroupId, GroupResult] = {}
        for s in range(count):
            mine = sorted(g for g in present if g % count == s)
            if not mine:
                continue
            _, facts, *means = self._ask(
                s, "combine", mine, *[refs[s] for _, refs in parts], num_returns=1 + len(mine)
            )
            for g, ref in zip(mine, means, strict=True):
                weight, nbytes = facts[g]
                results[g] = GroupResult(RayHandle(ref, nbytes), weight)
        return Reduced(dict(sorted(results.items())), replies)

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
        sizes, parts = self._hosts.run(call, 0)
        refs = {k: ref for part, kept in parts for k, ref in zip(part.on, kept, strict=True)}
        return {k: RayHandle(refs[k], nbytes) for k, nbytes in sizes.items()}

    def serve(self, task: Callable[..., Any], *, server: int = 0, **shared: Any) -> Any:
        return self._ask(server, "run", task, shared, self.where)[1]

    def derive(self, task: Callable[..., Tree], *, server: int = 0, **shared: Any) -> Handle:
        """Run a function on a parameter server; its tree goes from there to the object store."""
        _, nbytes, ref = self._ask(server, "derive", task, shared, self.where, num_returns=2)
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
        """Have actors write their memory and a server the models."""
        number = next(self._numbers)
        saved = self._hosts.ask_all("save", folder, number, where=self.where)
        shards = merge_shards(self._shards, [shard for shard in saved if shard])
        stored = self._ask(0, "save", folder, dict(models))[1] if models else {}
        self._shards = shards
        self._hosts.committed(folder, shards)
        self._servers.losses.forgive()
        return {"memory": shards, "models": stored}

    def restore(self, folder: str, manifest: Mapping[str, Any]) -> dict[str, Handle]:
        self._shards = dict(manifest["memory"])
        self._hosts.go_back(folder, self._shards, self.where)
        models: dict[str, Handle] = {}
        for name, digest in manifest["models"].items():
            _, nbytes, ref = self._ask(0, "load", folder, digest, num_returns=2)
            models[name] = RayHandle(ref, nbytes)
        return models

    def describe(self) -> list[dict[str, Any]]:
        return [*self._hosts.rows, *self._servers.rows]

    def close(self) -> None:
        """End the actors; the Ray session stays."""
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
        on, number = tuple(sorted(ids)), next(self._numbers)
        return Call(task, on, shared, each or {}, groups, self.where, number)

    def _ask(self, server: int, method: str, *arguments: Any, num_returns: int = 1) -> list[Any]:
        server %= len(self._servers.actors)
        return self._servers.ask(
            server, method, *arguments, where=self.where, num_returns=num_returns
        )

    def _wait_for_start(self) -> None:
        """Wait until every actor answers; one that cannot be placed would wait for ever."""
        actors = [*self._hosts.actors, *self._servers.actors]
        seconds = self._runtime.start_timeout_s
        try:
            facts = ray.get([a.describe.remote() for a in actors], timeout=seconds)
        except GetTimeoutError as wrong:
            free = ray.available_resources()
            self.close()
            raise EnvironmentNotFit(
                f"{len(actors)} actors did not start within runtime.start_timeout_s = "
                f"{seconds:g} s; free now: {free.get('CPU', 0):g} CPUs, "
                f"{free.get('GPU', 0):g} GPUs; wait for other jobs, lower runtime.actors or "
                "runtime.per_actor, or raise runtime.start_timeout_s (a node that makes its data "
                "first needs longer)"
            ) from wrong
        except (*LOST, *FAILED) as wrong:
            self.close()
            raise original(wrong) from wrong
        self._hosts.describe(facts[: len(self._hosts.actors)])
        self._servers.describe(facts[len(self._hosts.actors) :])

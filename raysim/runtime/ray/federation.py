"""``Federation`` on Ray actors.

Clients in cohorts, partial sums to parameter servers, lost actors rebuilt.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayTaskError,
    WorkerCrashedError,
)

from raysim.errors import EnvironmentNotFit, RaysimError, WorkerLost
from raysim.protocols import (
    ClientId,
    ClientRecord,
    GroupId,
    GroupResult,
    Handle,
    Reduced,
    Task,
    Tree,
    WorldSpec,
)
from raysim.runtime.cohort import Call, merge_shards
from raysim.runtime.placement import RuntimeSettings, plan
from raysim.runtime.ray.client_actor import ClientActor, RayHandle, fetch
from raysim.runtime.ray.idle import keep, take
from raysim.runtime.ray.parameter_server import ParameterServer
from raysim.runtime.ray.session import connect, nodes
from raysim.runtime.recovery import GiveUp, decide

log = logging.getLogger(__name__)
LOST = (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,  # what Ray raises when its memory monitor killed the actor
    WorkerCrashedError,
)

LOST_MODEL = "a stored model was lost with its node; go on from the last checkpoint with --resume"


class RayFederation:
    """Clients on actors. The driver sends one call per actor and keeps models behind handles."""

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
        cohorts = plan([len(r.sample_ids) for r in records], nodes(), runtime).cohorts
        self._runtime, self._spec, self._warm = runtime, spec, tuple(warm)
        self._records = [[records[i] for i in members] for members in cohorts]
        self._home = {records[i].id: c for c, members in enumerate(cohorts) for i in members}
        self._committed: tuple[str, dict[str, list[ClientId]]] = ("", {})
        self._replay: list[list[Call]] = [[] for _ in cohorts]
        self._losses = [0] * len(cohorts)
        self._server_losses = [0] * runtime.servers
        self.where = ""
        self.restarts = 0
        idle = take(runtime.per_actor, len(cohorts))
        for c, actor in enumerate(idle):
            actor.assign.remote(self._records[c], spec, self._warm)
        self._actors = idle + [self._new_actor(c) for c in range(len(idle), len(cohorts))]
        self._servers = [self._new_server() for _ in range(runtime.servers)]
        for module in self._warm:
            importlib.import_module(module)
        self._rows = self._wait_for_start()

    # ---- the Federation interface ----------------------------------------------------------

    def map(
        self,
        task: Task,
        *,
        on: Iterable[ClientId] | None = None,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> dict[ClientId, Any]:
        """Run a task on clients: one call per actor."""
        ids = self.clients if on is None else on
        replies, _ = self._run(self._calls(task, ids, shared, each or {}, None))
        return replies

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
        replies, parts = self._run(self._calls(task, groups, shared, each or {}, groups))
        count = len(self._servers)
        results: dict[GroupId, GroupResult] = {}
        for s in range(count):
            mine = sorted({g for g in groups.values() if g % count == s})
            if not mine:
                continue
            _, facts, *means = self._ask_server(
                s, "combine", mine, *[p[s] for p in parts], num_returns=1 + len(mine)
            )
            for g, ref in zip(mine, means, strict=True):
                weight, nbytes = facts[g]
                results[g] = GroupResult(RayHandle(ref, nbytes), weight)
        return Reduced(dict(sorted(results.items())), replies)

    def serve(self, task: Callable[..., Any], *, server: int = 0, **shared: Any) -> Any:
        """Run a function on a parameter server."""
        return self._ask_server(server % len(self._servers), "run", task, shared, self.where)[1]

    def derive(self, task: Callable[..., Tree], *, server: int = 0, **shared: Any) -> Handle:
        """Run a function on a parameter server; its tree goes from there to the object store."""
        _, nbytes, ref = self._ask_server(
            server % len(self._servers), "derive", task, shared, self.where, num_returns=2
        )
        return RayHandle(ref, nbytes)

    def put(self, tree: Tree) -> Handle:
        """Store a tree once."""
        return RayHandle(ray.put(dict(tree)), sum(a.nbytes for a in tree.values()))

    def get(self, handle: Handle) -> Tree:
        """Fetch a tree to the driver."""
        assert isinstance(handle, RayHandle)
        tree: Tree = fetch(handle)
        return tree

    def commit(self, folder: str, models: Mapping[str, Handle]) -> dict[str, Any]:
        """Have actors write their memory and a server the models."""
        saved = []
        for c in range(len(self._actors)):
            shard = self._ask_actor(c, "save", folder)
            saved += [shard] if shard else []
        shards = merge_shards(self._committed[1], saved)
        stored = self._ask_server(0, "save", folder, dict(models))[1] if models else {}
        self._committed = (folder, shards)
        self._replay = [[] for _ in self._actors]
        self._losses = [0] * len(self._actors)
        self._server_losses = [0] * len(self._servers)
        return {"memory": shards, "models": stored}

    def restore(self, folder: str, manifest: Mapping[str, Any]) -> dict[str, Handle]:
        """Take memory and models back."""
        self._committed = (folder, dict(manifest["memory"]))
        for c in range(len(self._actors)):
            self._ask_actor(c, "load", folder, self._committed[1])
        models: dict[str, Handle] = {}
        for name, digest in manifest["models"].items():
            _, nbytes, ref = self._ask_server(0, "load", folder, digest, num_returns=2)
            models[name] = RayHandle(ref, nbytes)
        return models

    def describe(self) -> list[dict[str, Any]]:
        """One row per actor."""
        return self._rows

    def close(self, *, keep_actors: bool = False) -> None:
        """End the actors, or keep the client actors for the next run; the Ray session stays."""
        if not ray.is_initialized():
            return
        if keep_actors:
            keep(self._runtime.per_actor, self._actors)
            self._actors = []
        for actor in [*self._actors, *self._servers]:
            ray.kill(actor)
        self._actors, self._servers = [], []

    # ---- starting --------------------------------------------------------------------------

    def _new_actor(self, cohort: int) -> Any:
        share = self._runtime.per_actor
        cls = ray.remote(ClientActor).options(
            num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )
        return cls.remote(self._records[cohort], self._spec, gpus=share.gpus, warm=self._warm)

    def _new_server(self) -> Any:
        return ray.remote(ParameterServer).options(num_cpus=0, num_gpus=0, max_restarts=0).remote()

    def _wait_for_start(self) -> list[dict[str, Any]]:
        """Wait until every actor answers.

        One that cannot be placed would otherwise wait for ever.
        """
        actors = [*self._actors, *self._servers]
        try:
            facts = ray.get(
                [a.describe.remote() for a in actors], timeout=self._runtime.start_timeout_s
            )
        except GetTimeoutError as wrong:
            free = ray.available_resources()
            self.close()
            raise EnvironmentNotFit(
                f"{len(actors)} actors did not start within runtime.start_timeout_s = "
                f"{self._runtime.start_timeout_s:g} s; free now: {free.get('CPU', 0):g} CPUs, "
                f"{free.get('GPU', 0):g} GPUs; wait for other jobs, lower runtime.actors or "
                "runtime.per_actor, or raise runtime.start_timeout_s"
            ) from wrong
        except (RayTaskError, ObjectLostError, *LOST) as wrong:
            self.close()
            raise _original(wrong) from wrong
        return [self._row(i, fact) for i, fact in enumerate(facts)]

    def _row(self, position: int, fact: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the actor at ``position``; servers come after the client actors."""
        if position >= len(self._records):
            return {"role": "server", **fact, "share": "0 CPU", "clients": 0}
        share = self._runtime.per_actor
        pinned = f"{share.cpus:g} CPU" + (f" {share.gpus:g} GPU" if share.gpus else "")
        count = len(self._records[position])
        return {"role": "clients", **fact, "share": pinned, "clients": count}

    # ---- calling ---------------------------------------------------------------------------

    def _calls(
        self,
        task: Task,
        ids: Iterable[ClientId],
        shared: Mapping[str, Any],
        each: Mapping[ClientId, Mapping[str, Any]],
        groups: Mapping[ClientId, GroupId] | None,
    ) -> dict[int, Call]:
        by_cohort: dict[int, list[ClientId]] = {}
        for k in sorted(ids):
            by_cohort.setdefault(self._home[k], []).append(k)
        return {
            c: Call(
                task,
                tuple(members),
                shared,
                {k: each[k] for k in members if k in each},
                None if groups is None else {k: groups[k] for k in members},
                self.where,
            )
            for c, members in sorted(by_cohort.items())
        }

    def _run(self, calls: Mapping[int, Call]) -> tuple[dict[ClientId, Any], list[list[Any]]]:
        """Return replies by client and, for a reduce, each actor's partial-sum references."""
        pending = {}
        for cohort, call in calls.items():
            refs = self._submit(cohort, call)
            pending[refs[0]] = (cohort, refs)
        replies: dict[ClientId, Any] = {}
        parts: list[list[Any]] = []
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            cohort, refs = pending.pop(ready[0])
            try:
                answer, changed = ray.get(ready[0])
            except LOST as wrong:
                _refuse_lost_objects(wrong)
                self._rebuild(cohort, wrong)
                refs = self._submit(cohort, calls[cohort])
                pending[refs[0]] = (cohort, refs)
                continue
            except (RayTaskError, ObjectLostError) as wrong:
                raise _original(wrong) from wrong
            if changed:
                self._replay[cohort].append(calls[cohort])
            replies.update(answer)
            parts.append(refs[1:])
        return dict(sorted(replies.items())), parts

    def _submit(self, cohort: int, call: Call) -> list[Any]:
        count = len(self._servers)
        returns = 1 if call.groups is None else 1 + count
        refs = self._actors[cohort].run.options(num_returns=returns).remote(call, count)
        return [refs] if returns == 1 else list(refs)

    def _ask_actor(self, cohort: int, method: str, *arguments: Any) -> Any:
        while True:
            try:
                return ray.get(getattr(self._actors[cohort], method).remote(*arguments))
            except LOST as wrong:
                _refuse_lost_objects(wrong)
                self._rebuild(cohort, wrong)
            except (RayTaskError, ObjectLostError) as wrong:
                raise _original(wrong) from wrong

    def _ask_server(
        self, server: int, method: str, *arguments: Any, num_returns: int = 1
    ) -> list[Any]:
        """Call a parameter server; return [first reference, its value, other references...]."""
        while True:
            call = getattr(self._servers[server], method).options(num_returns=num_returns)
            refs = call.remote(*arguments)
            refs = [refs] if num_returns == 1 else list(refs)
            try:
                return [refs[0], ray.get(refs[0]), *refs[1:]]
            except LOST as wrong:
                _refuse_lost_objects(wrong)
                self._allow("parameter server", server, self._server_losses, wrong)
                self._servers[server] = self._new_server()
                self._redescribe(server)
            except (RayTaskError, ObjectLostError) as wrong:
                raise _original(wrong) from wrong

    def _redescribe(self, server: int) -> None:
        position = len(self._records) + server
        with contextlib.suppress(*LOST):  # lost as well: the next call finds out and replaces it
            fact = ray.get(self._servers[server].describe.remote())
            self._rows[position] = self._row(position, fact)

    # ---- losing and rebuilding -------------------------------------------------------------

    def _rebuild(self, cohort: int, reason: Exception) -> None:
        """Replace a lost actor: committed memory back, then the calls since that commit again."""
        while True:
            self._allow("client actor", cohort, self._losses, reason)
            # An unreachable actor may still be alive; it must not answer for these clients again.
            with contextlib.suppress(*LOST):
                ray.kill(self._actors[cohort])
            self._actors[cohort] = self._new_actor(cohort)
            try:
                self._wait_for(cohort)
                folder, shards = self._committed
                if shards:
                    ray.get(self._actors[cohort].load.remote(folder, shards))
                for call in self._replay[cohort]:
                    ray.get(self._submit(cohort, call)[0])
                return
            except LOST as again:
                _refuse_lost_objects(again)
                reason = again
            except (RayTaskError, ObjectLostError) as wrong:
                raise _original(wrong) from wrong

    def _wait_for(self, cohort: int) -> None:
        """Wait until a rebuilt actor answers; without its node's resources it never would."""
        seconds = self._runtime.start_timeout_s
        try:
            fact = ray.get(self._actors[cohort].describe.remote(), timeout=seconds)
            self._rows[cohort] = self._row(cohort, fact)
        except GetTimeoutError as wrong:
            raise WorkerLost(
                f"client actor {cohort} was lost and found no room to start again within "
                f"runtime.start_timeout_s = {seconds:g} s; go on with --resume and fewer "
                "runtime.actors, or when the resources are back"
            ) from wrong

    def _allow(self, what: str, index: int, losses: list[int], reason: Exception) -> None:
        first_line = str(reason).strip().splitlines()[0] if str(reason).strip() else repr(reason)
        decision = decide(
            actor=f"{what} {index}",
            reason=first_line,
            restarts=losses[index],
            max_restarts=self._runtime.max_restarts,
        )
        if isinstance(decision, GiveUp):
            raise WorkerLost(decision.message) from reason
        losses[index] += 1
        self.restarts += 1
        log.warning("%s %d was lost (%s); rebuilding it", what, index, first_line)


def _refuse_lost_objects(wrong: Exception) -> None:
    """Raise if the actor lives and only what it was to fetch died with another node."""
    if isinstance(wrong, RayTaskError):
        raise WorkerLost(LOST_MODEL) from wrong


def _original(wrong: Exception) -> Exception:
    """Return the exception the task raised, not Ray's wrapper around it."""
    cause = getattr(wrong, "cause", None)
    if isinstance(cause or wrong, ObjectLostError):
        return WorkerLost(LOST_MODEL)
    if isinstance(cause, RaysimError):
        return cause
    return WorkerLost(str(wrong)) if isinstance(wrong, LOST) else wrong

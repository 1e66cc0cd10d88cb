"""The client actors: one call per actor, work shared out, lost ones rebuilt, late ones left.

raysim/README.md, "One Ray round, file by file", tells the whole story.

``ClientActor`` runs in a process of its own, on its CPU share or GPU slice; ``ClientActors`` is the
driver's side.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from raysim.core.aggregation import mean
from raysim.errors import ClientFailed, WorkerLost
from raysim.protocols import ClientId, ClientRecord, OwnModels, Tree, Where, WorldSpec
from raysim.runtime.cohort import Call, Cohort, resolve_with
from raysim.runtime.placement import Plan, share_out
from raysim.runtime.ray.connection import on_node
from raysim.runtime.ray.failures import (
    FAILED,
    LOST,
    Losses,
    is_other_actor,
    original,
    refuse_lost_objects,
)
from raysim.settings import RuntimeSettings

log = logging.getLogger(__name__)
AGAIN_S = 1.0
"""Pause before a call goes out again to an actor that was out of reach."""
TOGETHER_S = 0.01
"""How long to gather answers that come soon after the first."""


# ---- in the actor's process ------------------------------------------------------------------


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

    def lend(self, clients: Sequence[ClientId]) -> dict[ClientId, Tree]:
        """Return the memory of clients that train elsewhere in this round."""
        return self._cohort.lend(clients)

    def save(self, folder: str, number: int) -> tuple[str, list[ClientId]] | None:
        """Write changed memory; asked again for the same ``number``, answer the same."""
        return self._cohort.save(folder, number)

    def load(self, folder: str, shards: Mapping[str, Sequence[ClientId]]) -> None:
        self._cohort.load(folder, shards)

    def describe(self) -> dict[str, Any]:
        return describe_process()


_Remote = ray.remote(ClientActor)
"""Made once, so that Ray pickles and exports the class once and not for every actor."""


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


# ---- in the driver ---------------------------------------------------------------------------


class ClientActors:
    """Actors that host all clients, each a cohort of them."""

    def __init__(
        self,
        records: Sequence[ClientRecord],
        spec: WorldSpec,
        plan: Plan,
        runtime: RuntimeSettings,
        warm: Sequence[str],
    ) -> None:
        self._spec, self._runtime, self._warm = spec, runtime, tuple(warm)
        self._record = {r.id: r for r in records}
        self._cohorts = [[records[i] for i in members] for members in plan.cohorts]
        self._home = {r.id: c for c, members in enumerate(self._cohorts) for r in members}
        self._committed: tuple[str, dict[str, list[ClientId]]] = ("", {})
        self._replay: list[list[Call]] = [[] for _ in self._cohorts]
        self.losses = Losses("client actor", len(self._cohorts), runtime.max_restarts)
        self._remembers: set[ClientId] = set()
        """Clients whose memory is not empty."""
        self._unreachable_since: dict[int, float] = {}
        self.in_flight: dict[int, int | None] = {}
        """Number of the call that each busy actor works on."""
        self.late: list[ClientId] = []
        """Clients that missed a round since somebody last emptied this list."""
        self.rows: list[dict[str, Any]] = []
        self.actors = [self._new(c, on_node(home)) for c, home in enumerate(plan.homes)]

    def run(
        self, call: Call, num_servers: int
    ) -> tuple[dict[ClientId, Any], list[tuple[Call, list[Any]]]]:
        """Return replies by client, and what each actor stored for its part of the call.

        For a reduce a reference to a partial sum per server, for a keep one to a tree per client.
        """
        calls = self._cut(call)
        lent = {c: self._lent(part.guests) for c, part in calls.items()}  # before anybody is busy
        pending = {}
        for cohort, part in calls.items():
            refs = self._submit(cohort, part, num_servers, lent.pop(cohort))
            pending[refs[0]] = (cohort, refs)
        replies: dict[ClientId, Any] = {}
        parts: list[tuple[Call, list[Any]]] = []
        patience = Patience(call, self._runtime)
        while pending:
            ready = _answered(list(pending), patience.left(replies))
            if not ready:
                self._leave([(cohort, calls[cohort]) for cohort, _ in pending.values()])
                break
            for ref in ready:
                cohort, refs = pending.pop(ref)
                answer = self._answer(cohort, calls[cohort], ref)
                if answer is not None:
                    replies.update(answer)
                    parts.append((calls[cohort], refs[1:]))
                elif patience.left(replies) == 0.0:
                    self._miss(cohort, calls[cohort])
                else:
                    again = calls[cohort]
                    refs = self._submit(cohort, again, num_servers, self._lent(again.guests))
                    pending[refs[0]] = (cohort, refs)
        return dict(sorted(replies.items())), parts

    def ask_all(self, method: str, *arguments: Any, where: Where | None) -> list[Any]:
        """Call a method of every actor at the same time; return the answers in order."""
        refs = [getattr(actor, method).remote(*arguments) for actor in self.actors]
        answers = []
        for cohort, first in enumerate(refs):
            ref = first
            while True:
                try:
                    answers.append(ray.get(ref))
                    break
                except LOST as wrong:
                    refuse_lost_objects(wrong)
                    self._recover(cohort, wrong, where=where, during=method)
                    ref = getattr(self.actors[cohort], method).remote(*arguments)
                except FAILED as wrong:
                    raise original(wrong) from wrong
        return answers

    def committed(self, folder: str, shards: dict[str, list[ClientId]]) -> None:
        """Remember the commit that lost actors are rebuilt from."""
        self._start_from(folder, shards)
        self.losses.forgive()

    def go_back(self, folder: str, shards: dict[str, list[ClientId]], where: Where | None) -> None:
        """Take all memory back to a commit, also that of actors still busy with what came after."""
        self._start_from(folder, shards)
        for cohort in list(self.in_flight):
            self._rebuild_without_loss(cohort, where)
        self.ask_all("load", folder, shards, where=where)

    def _start_from(self, folder: str, shards: dict[str, list[ClientId]]) -> None:
        self._committed = (folder, shards)
        self._remembers = {k for clients in shards.values() for k in clients}
        self._replay = [[] for _ in self.actors]

    def describe(self, facts: Sequence[dict[str, Any]]) -> None:
        """Take what the actors say about themselves."""
        self.rows = [self._row(cohort, fact) for cohort, fact in enumerate(facts)]

    def end(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []

    # ---- calling ---------------------------------------------------------------------------

    def _cut(self, call: Call) -> dict[int, Call]:
        """Return one call per actor; training of a round is shared out evenly."""
        home = {k: self._home[k] for k in call.on}
        if call.may_be_missed:
            sizes = {k: len(self._record[k].sample_ids) for k in call.on}
            home = share_out(home, sizes, len(self.actors))
        members: dict[int, list[ClientId]] = {}
        for k in call.on:
            members.setdefault(home[k], []).append(k)
        return {
            cohort: replace(
                call,
                on=tuple(own),
                shared={
                    name: value.only(own) if isinstance(value, OwnModels) else value
                    for name, value in call.shared.items()
                },
                each={k: call.each[k] for k in own if k in call.each},
                groups=None if call.groups is None else {k: call.groups[k] for k in own},
                guests=tuple(self._record[k] for k in own if self._home[k] != cohort),
            )
            for cohort, own in sorted(members.items())
        }

    def _submit(
        self, cohort: int, call: Call, num_servers: int, lent: Sequence[Any] = ()
    ) -> list[Any]:
        stored = len(call.on) if call.keeps else 0 if call.groups is None else num_servers
        self.in_flight[cohort] = call.number
        run = self.actors[cohort].run.options(num_returns=1 + stored)
        refs = run.remote(call, num_servers, *lent)
        return list(refs) if stored else [refs]

    def _lent(self, guests: Iterable[ClientRecord]) -> list[Any]:
        """Return references to the memory of guests, from the actors that host them."""
        by_home: dict[int, list[ClientId]] = {}
        for guest in guests:
            if guest.id in self._remembers:
                by_home.setdefault(self._home[guest.id], []).append(guest.id)
        return [self.actors[c].lend.remote(ids) for c, ids in by_home.items()]

    def _answer(self, cohort: int, call: Call, ref: Any) -> dict[ClientId, Any] | None:
        """Return an actor's replies, or None when the call must go out again."""
        try:
            replies, changed = ray.get(ref)
        except LOST as wrong:
            if is_other_actor(wrong):  # whoever should have lent memory; its own call tells
                time.sleep(AGAIN_S)
                return None
            refuse_lost_objects(wrong)
            self._recover(cohort, wrong, where=call.where, during=call.task.__name__)
            return None
        except FAILED as wrong:
            raise self._named(original(wrong), cohort) from wrong
        del self.in_flight[cohort]
        self._unreachable_since.pop(cohort, None)
        if changed:
            self._replay[cohort].append(call)
            self._remembers.update(call.on)
        answer: dict[ClientId, Any] = replies
        return answer

    def _named(self, wrong: Exception, cohort: int) -> Exception:
        """Add the node to what a client's task raised."""
        if not isinstance(wrong, ClientFailed):
            return wrong
        node = self.rows[cohort]["node"]
        return ClientFailed(wrong.client, wrong.task, wrong.reason, wrong.where, wrong.trace, node)

    # ---- losing, leaving and rebuilding ----------------------------------------------------

    def _recover(self, cohort: int, reason: Exception, *, where: Where | None, during: str) -> None:
        """Make an actor answer again: let one out of reach come back, rebuild one that is gone."""
        if isinstance(reason, ActorUnavailableError) and self._may_come_back(cohort):
            log.warning(
                "client actor %d is out of reach in %s; sending %s again",
                *(cohort, where or "setup", during),
            )
            time.sleep(AGAIN_S)
            return
        while True:
            node = self.rows[cohort]["node"]
            busy = self.in_flight.pop(cohort, None)
            self.losses.allow(cohort, reason, where=where, during=during, node=node, call=busy)
            try:
                self._rebuild(cohort)
                return
            except LOST as again:
                refuse_lost_objects(again)
                reason = again
            except FAILED as wrong:
                raise original(wrong) from wrong

    def _may_come_back(self, cohort: int) -> bool:
        """Whether an actor out of reach gets the call again: it may only be busy, or cut off.

        A call that comes twice counts once. After the start timeout without an answer it is lost.
        """
        since = self._unreachable_since.setdefault(cohort, time.monotonic())
        return time.monotonic() - since < self._runtime.start_timeout_s

    def _rebuild(self, cohort: int) -> None:
        """Replace an actor: committed memory back, then the calls since that commit again."""
        # An unreachable actor may still be alive; it must not answer for these clients again.
        with contextlib.suppress(*LOST):
            ray.kill(self.actors[cohort])
        self._unreachable_since.pop(cohort, None)
        self.actors[cohort] = self._new(cohort, "SPREAD")
        self._wait_for(cohort)
        folder, shards = self._committed
        if shards:
            ray.get(self.actors[cohort].load.remote(folder, shards))
        for call in self._replay[cohort]:
            ray.get(self._submit(cohort, call, 1)[0])
        self.in_flight.pop(cohort, None)

    def _rebuild_without_loss(self, cohort: int, where: Where | None) -> None:
        """Replace an actor that lives; only if the new one dies too it counts as lost."""
        self.in_flight.pop(cohort, None)
        try:
            self._rebuild(cohort)
        except LOST as wrong:
            refuse_lost_objects(wrong)
            self._recover(cohort, wrong, where=where, during="start")
        except FAILED as wrong:
            raise original(wrong) from wrong

    def _leave(self, slow: Sequence[tuple[int, Call]]) -> None:
        """Go on without actors past the deadline; they start anew, as if the call never was."""
        for cohort, call in slow:
            self._miss(cohort, call)
            self._rebuild_without_loss(cohort, call.where)

    def _miss(self, cohort: int, call: Call) -> None:
        """Note that the clients of a call are late."""
        self.late += call.on
        log.warning(
            "client actor %d on node %s did not finish %s in %s within "
            "runtime.round_deadline_s; clients %s miss the round",
            *(cohort, self.rows[cohort]["node"], call.task.__name__, call.where),
            ", ".join(map(str, call.on)),
            extra={"facts": {"event": "late", "clients": list(call.on)}},
        )

    def _new(self, cohort: int, strategy: Any) -> Any:
        share = self._runtime.per_actor
        cls = _Remote.options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,
            scheduling_strategy=strategy,
            enable_task_events=False,  # Ray would keep every call of every round in memory
        )
        return cls.remote(self._cohorts[cohort], self._spec, gpus=share.gpus, warm=self._warm)

    def _wait_for(self, cohort: int) -> None:
        """Wait until a rebuilt actor answers; without its node's resources it never would."""
        seconds = self._runtime.start_timeout_s
        try:
            fact = ray.get(self.actors[cohort].describe.remote(), timeout=seconds)
            self.rows[cohort] = self._row(cohort, fact)
        except GetTimeoutError as wrong:
            raise WorkerLost(
                f"client actor {cohort} found no room to start again within "
                f"runtime.start_timeout_s = {seconds:g} s (or its node had to make the data "
                "first); go on with --resume and fewer runtime.actors, when the resources are "
                "back, or with a longer runtime.start_timeout_s"
            ) from wrong

    def _row(self, cohort: int, fact: Mapping[str, Any]) -> dict[str, Any]:
        share = self._runtime.per_actor
        pinned = f"{share.cpus:g} CPU" + (f" {share.gpus:g} GPU" if share.gpus else "")
        count = len(self._cohorts[cohort])
        return {"role": "clients", **fact, "share": pinned, "clients": count}


def _answered(refs: list[Any], timeout: float | None) -> list[Any]:
    """Return all that is there once the first is: a wait for each would look at all every time."""
    ready, waiting = ray.wait(refs, num_returns=1, timeout=timeout)
    if ready and waiting:
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=TOGETHER_S)
    return list(ready)


class Patience:
    """How long to wait for the slowest actors of one call."""

    def __init__(self, call: Call, runtime: RuntimeSettings) -> None:
        self._until: float | None = None
        if runtime.round_deadline_s is not None and call.may_be_missed:
            self._until = time.monotonic() + runtime.round_deadline_s
        self._enough = math.ceil(runtime.quorum * len(call.on) - 1e-9)

    def left(self, replies: Mapping[ClientId, Any]) -> float | None:
        """Return the seconds to wait for the next answer; None: however long it takes."""
        if self._until is None or len(replies) < self._enough:
            return None
        return max(self._until - time.monotonic(), 0.0)

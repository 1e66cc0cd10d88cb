"""Which client actor hosts whom: started, lost, begun again, moved.

A client's bits do not depend on its actor, so clients may move whenever their memory can follow:
from the last commit, and the calls since then once more.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError

from raysim.errors import WorkerLost
from raysim.protocols import ClientId, ClientRecord, OwnModels, Where, WorldSpec
from raysim.runtime.cohort import Call
from raysim.runtime.placement import Plan, bundled, share_out, spread
from raysim.runtime.ray.connection import draining, nodes
from raysim.runtime.ray.failures import FAILED, LOST, Losses, original, refuse_lost_objects
from raysim.runtime.ray.processes import ClientActor
from raysim.runtime.ray.seats import SAY_S, Names, Seat, Seats, clients_name

log = logging.getLogger(__name__)
AGAIN_S = 1.0
"""Pause before a call goes out again to an actor that was out of reach."""
SETTLE_S = 3.0
"""How long Ray may take to find another place for a lost one, if there is room."""
LOOK_S = 1.0
"""How often to look for nodes that come and go."""
_Remote = ray.remote(ClientActor)
"""Made once, so that Ray pickles and exports the class once and not for every actor."""


@dataclass(eq=False)
class Host:
    """A client actor as the driver knows it."""

    number: int
    seat: Seat
    clients: set[ClientId]
    actor: Any = None
    """None: lost, or without a place."""
    coming: Any = None
    """What it will say about itself once it has started; it hosts nobody until then."""
    name: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    in_flight: int | None = None
    """Number of the call that it works on."""
    unreachable_since: float | None = None
    shunned: set[str] = field(default_factory=set)
    """Nodes on which it did not start."""

    @property
    def is_there(self) -> bool:
        """Whether clients can live here."""
        return self.actor is not None and self.coming is None


class Hosts:
    """All client actors of a run, and where each client lives."""

    def __init__(
        self,
        records: Sequence[ClientRecord],
        spec: WorldSpec,
        plan: Plan,
        names: Names,
        warm: Sequence[str],
    ) -> None:
        self._spec, self._runtime, self._warm = spec, plan.runtime, tuple(warm)
        self._names, self._seats = names, Seats(names.namespace)
        self.record = {r.id: r for r in records}
        self.sizes = {r.id: len(r.sample_ids) for r in records}
        self.losses = Losses("client actor", plan.runtime.max_restarts)
        self._committed: tuple[str, dict[str, list[ClientId]]] = ("", {})
        self.since: list[tuple[Call, set[ClientId]]] = []
        """Calls that changed memory since the commit, and whose."""
        self.all: list[Host] = []
        self.home: dict[ClientId, Host] = {}
        self._most = plan.runtime.limits(len(records))[1]
        self._known, self._left = {node.id for node in nodes()}, set[str]()
        self._drained = set[str]()
        """Nodes that were ever seen draining: Ray forgets it when they are dead."""
        self._looked = time.monotonic()
        self.unsettled = False
        """Whether actors or nodes came or went since clients were last shared out."""
        try:
            for seat, cohort in zip(self._seats.first(plan), plan.cohorts, strict=True):
                host = self._add(seat, {records[i].id for i in cohort})
                self.home |= dict.fromkeys(host.clients, host)
                host.actor = self._new(host)
            for seat in self._seats.more(plan.more, range(len(plan.more))):
                self._come(self._add(seat, set()))
        except BaseException:
            self.end()
            raise

    # ---- starting and ending -----------------------------------------------------------------

    def _add(self, seat: Seat, clients: set[ClientId]) -> Host:
        self.all.append(Host(self.all[-1].number + 1 if self.all else 0, seat, clients))
        return self.all[-1]

    def _new(self, host: Host) -> Any:
        share = self._runtime.per_actor
        what = clients_name(host.clients) if host.clients else f"clients-joined-{host.number}"
        name = self._names.options(what)
        host.name = name["name"]
        made = _Remote.options(
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            max_restarts=0,
            scheduling_strategy=host.seat.strategy,
            enable_task_events=False,  # Ray would keep every call of every round in memory
            **name,
        )
        records = [self.record[k] for k in sorted(host.clients)]
        return made.remote(records, self._spec, gpus=share.gpus, warm=self._warm)

    def _come(self, host: Host) -> None:
        """Start an actor without clients, and do not wait for it."""
        host.actor = self._new(host)
        host.coming = host.actor.describe.remote()

    def there(self) -> list[Host]:
        """Actors that clients can live on."""
        return [host for host in self.all if host.is_there]

    def describe(self, host: Host, fact: Mapping[str, Any]) -> None:
        """Take what an actor says about itself."""
        host.row = {"role": "clients", "name": host.name, **fact}

    def rows(self) -> list[dict[str, Any]]:
        """Return what is known of each actor, for people."""
        share = self._runtime.per_actor
        pinned = f"{share.cpus:g} CPU" + (f" {share.gpus:g} GPU" if share.gpus else "")
        return [
            {**host.row, "share": pinned, "clients": len(host.clients)} for host in self.there()
        ]

    def end(self) -> None:
        for host in self.all:
            if host.actor is not None:
                ray.kill(host.actor)
        self.all = []
        self._seats.end()

    # ---- losing ------------------------------------------------------------------------------

    def may_come_back(self, host: Host, reason: Exception) -> bool:
        """Whether an actor out of reach is asked again: it may only be busy, or cut off.

        A call that comes twice counts once. After the start timeout without an answer it is lost.
        """
        if not isinstance(reason, ActorUnavailableError):
            return False
        if host.unreachable_since is None:
            host.unreachable_since = time.monotonic()
        if time.monotonic() - host.unreachable_since >= self._runtime.start_timeout_s:
            return False
        log.warning("client actor %d is out of reach; asking it again", host.number)
        time.sleep(AGAIN_S)
        return True

    def lose(self, host: Host, reason: Exception, *, where: Where | None, during: str) -> None:
        """Count an actor as lost; its clients have none until ``mend``."""
        if host.actor is None:
            return
        busy, node = host.in_flight, host.row.get("node", "unknown")
        self.drop(host)
        node_id = host.row.get("node_id")
        self.unsettled = True
        announced = getattr(reason, "preempted", False) or node_id in self._leaving()
        self.losses.allow(
            *(host.number, reason),
            **{"where": where, "during": during, "node": node, "call": busy},
            announced=announced,
        )

    def drop(self, host: Host) -> None:
        """End an actor; it must not answer for these clients again, should it be alive."""
        with contextlib.suppress(*LOST):
            ray.kill(host.actor)
        host.actor = host.coming = host.in_flight = host.unreachable_since = None

    def _leaving(self) -> set[str]:
        """Return the nodes that drain, or did before they died."""
        self._drained |= draining()
        return self._drained

    def mend(self, where: Where | None, *, in_place: bool = False) -> None:
        """Give every client an actor: its own once more, or where that has no room another one.

        ``in_place``: only those whose place is there, so that nobody who works is disturbed.
        """
        began = time.monotonic()
        says = began + SAY_S
        while gone := [host for host in self.all if host.clients and not host.is_there]:
            placed, leaving = self._seats.placed([host.seat for host in gone]), draining()
            bad = {host: leaving | host.shunned for host in gone}
            back = [host for host in gone if placed.get(host.seat, "") not in {"", *bad[host]}]
            if back:
                self._begin_again(back, where)
            elif in_place:
                return
            elif time.monotonic() < began + SETTLE_S and not all(h.seat.node for h in gone):
                time.sleep(0.1)
            elif self._arrived() or self.there():
                self._move_out(gone, where)
            elif time.monotonic() > began + self._runtime.queue_timeout_s:
                raise WorkerLost(
                    f"no client actor is left, and none found room to start again within "
                    f"runtime.queue_timeout_s = {self._runtime.queue_timeout_s:g} s; go on with "
                    "--resume when the resources are back, or with a longer "
                    "runtime.queue_timeout_s"
                )
            else:
                self._use_new_nodes(leaving)
                if time.monotonic() > says:
                    says += SAY_S
                    log.warning(
                        "no client actor is left; waiting for room for %.0f s (at most %g s: "
                        "runtime.queue_timeout_s)",
                        *(time.monotonic() - began, self._runtime.queue_timeout_s),
                    )
                time.sleep(0.5)

    def _move_out(self, gone: Sequence[Host], where: Where | None) -> None:
        """Give the clients of lost actors to those that live."""
        homes = {k: host.number for k, host in self.home.items()}
        places = share_out(homes, self.sizes, [host.number for host in self.there()])
        self.move({k: places[k] for host in gone for k in host.clients}, "lost", where)

    def _begin_again(self, lost: Sequence[Host], where: Where | None) -> None:
        """Start lost actors anew, all at the same time, with the memory of their clients."""
        asked = []
        for host in lost:
            host.actor = self._new(host)
            host.coming = host.actor.describe.remote()
            asked.append((host, self._adopt(host, host.clients)))
        deadline = time.monotonic() + self._runtime.start_timeout_s
        for host, adopted in asked:
            try:
                left = max(deadline - time.monotonic(), 0.1)
                self.describe(host, ray.get(host.coming, timeout=left))
                ray.get(adopted)
                host.coming = None
            except GetTimeoutError as wrong:
                self.drop(host)
                if self.there():
                    self._move_out([host], where)
                    continue
                raise WorkerLost(
                    f"client actor {host.number} found no room to start again within "
                    f"runtime.start_timeout_s = {self._runtime.start_timeout_s:g} s (or its node "
                    "had to make the data first); go on with --resume and fewer runtime.actors, "
                    "when the resources are back, or with a longer runtime.start_timeout_s"
                ) from wrong
            except LOST as wrong:
                refuse_lost_objects(wrong)
                if len(self.there()) == 0:
                    self.lose(host, wrong, where=where, during="start")
                    continue
                log.warning("client actor %d did not start again (%s)", host.number, wrong)
                host.shunned |= set(self._seats.placed([host.seat]).values())
                self.drop(host)
                self._move_out([host], where)
            except FAILED as wrong:
                raise original(wrong) from wrong

    # ---- moving ------------------------------------------------------------------------------

    def _adopt(self, host: Host, clients: Iterable[ClientId]) -> Any:
        """Have an actor take clients over, memory and all; return the reference."""
        wanted, (folder, stored) = set(clients), self._committed
        shards = {d: own for d, ids in stored.items() if (own := [k for k in ids if k in wanted])}
        calls = [part(call, wanted & on) for call, on in self.since if wanted & on]
        records = [self.record[k] for k in sorted(wanted)]
        return host.actor.adopt.remote(records, folder, shards, calls)

    def move(self, places: Mapping[ClientId, int], cause: str, where: Where | None) -> None:
        """Move clients to the actors with these numbers; those that cannot take them have none."""
        began = time.monotonic()
        guests: dict[int, list[ClientId]] = {}
        for client in sorted(places):
            guests.setdefault(places[client], []).append(client)
        asked = [
            (host, guests[host.number], self._adopt(host, guests[host.number]))
            for host in self.there()
            if host.number in guests
        ]
        for host, clients, ref in asked:
            try:
                ray.get(ref)
            except LOST as wrong:
                refuse_lost_objects(wrong)
                if not self.may_come_back(host, wrong):
                    self.lose(host, wrong, where=where, during="move")
                continue
            except FAILED as wrong:
                raise original(wrong) from wrong
            host.unreachable_since = None
            self._settle_in(host, clients, cause, time.monotonic() - began)

    def _settle_in(self, host: Host, clients: list[ClientId], cause: str, seconds: float) -> None:
        sources = {self.home[k] for k in clients}
        for source in sources:
            source.clients.difference_update(clients)
            if source.is_there:
                source.actor.release.remote(clients)
        host.clients.update(clients)
        self.home |= dict.fromkeys(clients, host)
        facts = {"event": "moved", "clients": clients, "cause": cause, "seconds": round(seconds, 3)}
        facts |= {"from": sorted(s.number for s in sources), "to": host.number}
        log.warning(
            "%d clients moved to client actor %d on node %s in %.1f s (%s)",
            *(len(clients), host.number, host.row["node"], seconds, cause),
            extra={"facts": facts},
        )

    def start_from(self, folder: str, shards: dict[str, list[ClientId]]) -> None:
        """Take a commit for what lost memory comes back from."""
        self._committed, self.since = (folder, shards), []

    # ---- nodes that come and go --------------------------------------------------------------

    def look(self) -> None:
        """Notice, now and then, whether clients should be shared out anew."""
        if self.unsettled or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        living, leaving = {node.id for node in nodes(leaving=True)}, draining()
        self._drained |= leaving
        self._known &= living
        self.unsettled = (
            bool(living - self._known - leaving)
            or any(h.row.get("node_id") in leaving - self._left for h in self.there())
            or (self._room() > 0 and bool(self._called(leaving)))
            or bool(_ready(self.all))
        )

    def _arrived(self) -> list[Host]:
        """Take in actors that have started meanwhile; give the places of those that died back."""
        came = []
        for host in _ready(self.all):
            try:
                self.describe(host, ray.get(host.coming))
                host.coming = None
                came.append(host)
            except (*LOST, *FAILED) as wrong:
                log.warning("client actor %d did not start (%s)", host.number, wrong)
                host.shunned |= set(self._seats.placed([host.seat]).values())
                self._give_up(host)
        return came

    def _give_up(self, host: Host) -> None:
        """End an actor without clients; forget it, unless its place may come back."""
        self.drop(host)
        if self._seats.give_back(host.seat):
            self.all.remove(host)

    def settle(self, where: Where | None) -> set[str]:
        """After a commit: leave nodes that drain, use places that came; return who drains."""
        self.unsettled = False
        living, leaving = nodes(), draining()
        came = bool(self._arrived())
        for host in [h for h in self.all if h.actor is None and not h.clients]:
            if self._seats.give_back(host.seat):
                self.all.remove(host)
        self._call_in(leaving)
        self._use_new_nodes(leaving)
        self._known, self._left = {node.id for node in living}, leaving
        stay = [h for h in self.there() if h.row["node_id"] not in leaving] or self.there()
        if came or len(stay) < len(self.there()):
            homes = {k: host.number for k, host in self.home.items()}
            places = share_out(homes, self.sizes, [host.number for host in stay])
            moves = {k: place for k, place in places.items() if place != homes[k]}
            self.move(moves, "joined" if len(stay) == len(self.there()) else "drained", where)
        for host in self.there():
            if host not in stay and not host.clients:
                self._give_up(host)
        self.unsettled = any(host.clients and not host.is_there for host in self.all)
        return leaving

    def _call_in(self, leaving: set[str]) -> None:
        """Start actors where lost places of the first group are there again."""
        for host in self._called(leaving):
            if self._room() > 0:
                self._come(host)

    def _called(self, leaving: set[str]) -> list[Host]:
        """Return the actors without clients whose place is there again."""
        away = [host for host in self.all if host.actor is None and not host.clients]
        placed = self._seats.placed([host.seat for host in away])
        return [h for h in away if placed.get(h.seat, "") not in {"", *leaving, *h.shunned}]

    def _use_new_nodes(self, leaving: set[str]) -> None:
        """Start actors on nodes that joined, up to ``runtime.actors``."""
        new = [node for node in nodes() if node.id not in self._known]
        if not new or self._room() < 1:
            return
        until = time.monotonic() + SETTLE_S
        while (held_up := self._seats.is_held_up) and time.monotonic() < until:
            time.sleep(0.1)  # a place that was lost comes first
        self._call_in(leaving)
        taken = set(self._seats.placed([host.seat for host in self.all]).values())
        share = self._runtime.per_actor
        new = [node for node in new if node.id not in taken]
        self._known |= {node.id for node in new}
        count = min(sum(node.slots(share) for node in new), self._room())
        if count < 1:
            return
        homes = spread(new, share, count)
        if held_up:
            seats = [Seat(None, 0, node) for node in homes]
        else:
            seats = self._seats.more(*bundled(homes, share))
        for seat in seats:
            self._come(self._add(seat, set()))

    def _room(self) -> int:
        return self._most - sum(host.actor is not None for host in self.all)


def part(call: Call, clients: Iterable[ClientId]) -> Call:
    """Return a call for some of its clients only."""
    own = tuple(sorted(clients))
    shared = {n: v.only(own) if isinstance(v, OwnModels) else v for n, v in call.shared.items()}
    each = {k: call.each[k] for k in own if k in call.each}
    groups = None if call.groups is None else {k: call.groups[k] for k in own}
    return replace(call, on=own, shared=shared, each=each, groups=groups)


def _ready(hosts: Sequence[Host]) -> list[Host]:
    """Return those that were coming and have answered, or died."""
    coming = {host.coming: host for host in hosts if host.coming is not None}
    if not coming:
        return []
    ready, _ = ray.wait(list(coming), num_returns=len(coming), timeout=0)
    return [coming[ref] for ref in ready]

"""Calling the client actors: one call per actor, work shared out, lost ones mended, late ones left.

raysim/README.md, "One Ray round, file by file", tells the whole story.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from raysim.errors import ClientFailed
from raysim.protocols import ClientId, Where
from raysim.runtime.cohort import Call
from raysim.runtime.placement import share_out
from raysim.runtime.ray.failures import (
    FAILED,
    LOST,
    is_other_actor,
    original,
    refuse_lost_objects,
)
from raysim.runtime.ray.hosts import Host, Hosts, part
from raysim.settings import RuntimeSettings

log = logging.getLogger(__name__)
TOGETHER_S = 0.01
"""How long to gather answers that come soon after the first."""


@dataclass(frozen=True)
class Part:
    """What one actor does of a call."""

    host: Host
    actor: Any
    """Who was asked: another one may be in its place by now."""
    call: Call
    refs: list[Any]
    """Its answer, and what it stored: partial sums by server, or trees by client."""
    lenders: list[tuple[Host, Any, Any]]
    """Who lends the memory of the call's guests: place, actor, reference."""


class ClientActors:
    """Runs calls on the actors that host the clients."""

    def __init__(self, hosts: Hosts, runtime: RuntimeSettings) -> None:
        self.hosts, self._runtime = hosts, runtime
        self.numbers = itertools.count()
        self._remembers: set[ClientId] = set()
        """Clients whose memory is not empty."""
        self.late: list[ClientId] = []
        """Clients that missed a round since somebody last emptied this list."""

    def run(self, call: Call, num_servers: int) -> tuple[dict[ClientId, Any], list[Part]]:
        """Return replies by client, and the parts of the call with what their actors stored."""
        replies: dict[ClientId, Any] = {}
        done: list[Part] = []
        changed: set[ClientId] = set()
        self.hosts.since.append((call, changed))
        patience = Patience(call, self._runtime)
        left: Sequence[ClientId] = call.on
        while left:  # a second time for the clients of actors that did not come back
            if patience.left(replies) == 0.0:
                self._miss(left, call, {self.hosts.home[k] for k in left})
                break
            self.hosts.mend(call.where)
            wave = replace(call, number=next(self.numbers))
            left = self._wave(wave, left, num_servers, patience, replies, done, changed)
        if not changed:
            self.hosts.since.pop()
        return dict(sorted(replies.items())), done

    def _wave(
        self,
        call: Call,
        on: Sequence[ClientId],
        num_servers: int,
        patience: Patience,
        replies: dict[ClientId, Any],
        done: list[Part],
        changed: set[ClientId],
    ) -> list[ClientId]:
        """Send a call to the actors of some clients; return those that got no answer."""
        pending = {p.refs[0]: p for p in self._send(call, on, num_servers)}
        left: list[ClientId] = []
        while pending:
            ready = _answered(list(pending), patience.left(replies))
            if not ready:
                self._leave(list(pending.values()))
                break
            again: list[Part] = []
            for ref in ready:
                one = pending.pop(ref)
                answer = self._answer(one)
                if answer is None:
                    again.append(one)
                    continue
                replies.update(answer[0])
                done.append(one)
                if answer[1]:
                    changed.update(one.call.on)
                    self._remembers.update(one.call.on)
            if again and patience.left(replies) == 0.0:
                for one in again:
                    self._miss(one.call.on, one.call, [one.host])
                continue
            if again:
                self.hosts.mend(call.where, in_place=True)
            for one in again:
                if one.host.is_there and all(self.hosts.home[k].is_there for k in one.call.on):
                    new = self._submit(one.host, one.call, num_servers)
                    pending[new.refs[0]] = new
                else:
                    left += one.call.on
        return left

    def ask_all(self, method: str, *arguments: Any, where: Where | None) -> list[tuple[Host, Any]]:
        """Call a method of every actor at the same time; return the answers.

        All are asked again, with another number, after one was lost: others may have its clients.
        """
        answers: list[tuple[Host, Any]] = []
        complete = False
        while not complete:
            self.hosts.mend(where)
            complete, number = True, next(self.numbers)
            asked = [(host, getattr(host.actor, method), host.actor) for host in self.hosts.there()]
            refs = [ask.remote(*arguments, number) for _, ask, _ in asked]
            for (host, ask, actor), first in zip(asked, refs, strict=True):
                ref = first
                while host.actor is actor:
                    try:
                        answers.append((host, ray.get(ref)))
                        host.unreachable_since = None
                        break
                    except LOST as wrong:
                        refuse_lost_objects(wrong)
                        if not self.hosts.may_come_back(host, wrong):
                            self.hosts.lose(host, wrong, where=where, during=method)
                        ref = ask.remote(*arguments, number)
                    except FAILED as wrong:
                        raise original(wrong) from wrong
                complete = complete and host.actor is actor
        return answers

    def save(self, folder: str, where: Where | None) -> list[tuple[str, list[ClientId]]]:
        """Have actors write memory that changed; return objects with the clients in each."""
        return [
            # An actor may have had a client for a while only.
            (saved[0], [k for k in saved[1] if self.hosts.home[k] is host])
            for host, saved in self.ask_all("save", folder, where=where)
            if saved is not None
        ]

    def committed(self, folder: str, shards: dict[str, list[ClientId]]) -> None:
        """Remember the commit that lost actors are rebuilt from."""
        self._start_from(folder, shards)
        self.hosts.losses.forgive()

    def go_back(self, folder: str, shards: dict[str, list[ClientId]], where: Where | None) -> None:
        """Take all memory back to a commit, also that of actors still busy with what came after."""
        self._start_from(folder, shards)
        for host in self.hosts.there():
            if host.in_flight is not None:
                self.hosts.drop(host)
        self.ask_all("load", folder, shards, where=where)

    def _start_from(self, folder: str, shards: dict[str, list[ClientId]]) -> None:
        self.hosts.start_from(folder, shards)
        self._remembers = {k for clients in shards.values() for k in clients}

    # ---- calling ---------------------------------------------------------------------------

    def _send(self, call: Call, on: Sequence[ClientId], num_servers: int) -> list[Part]:
        """Send one call per actor; training of a round is shared out evenly."""
        there = {host.number: host for host in self.hosts.there()}
        place = {k: self.hosts.home[k].number for k in on}
        if call.may_be_missed:
            place = share_out(place, self.hosts.sizes, there)
        members: dict[int, list[ClientId]] = {}
        for k in on:
            members.setdefault(place[k], []).append(k)
        calls = [(there[n], part(call, own)) for n, own in sorted(members.items())]
        lent = [self._lent(host, own.on) for host, own in calls]  # before anybody is busy
        return [
            self._submit(host, own, num_servers, lenders)
            for (host, own), lenders in zip(calls, lent, strict=True)
        ]

    def _submit(
        self,
        host: Host,
        call: Call,
        num_servers: int,
        lenders: list[tuple[Host, Any, Any]] | None = None,
    ) -> Part:
        lenders = self._lent(host, call.on) if lenders is None else lenders
        guests = tuple(self.hosts.record[k] for k in call.on if self.hosts.home[k] is not host)
        call = replace(call, guests=guests)
        stored = len(call.on) if call.keeps else 0 if call.groups is None else num_servers
        host.in_flight = call.number
        run = host.actor.run.options(num_returns=1 + stored)
        refs = run.remote(call, num_servers, *[ref for _, _, ref in lenders])
        return Part(host, host.actor, call, list(refs) if stored else [refs], lenders)

    def _lent(self, host: Host, on: Iterable[ClientId]) -> list[tuple[Host, Any, Any]]:
        """Return references to the memory of guests, from the actors that host them."""
        lenders: dict[Host, list[ClientId]] = {}
        for k in on:
            if self.hosts.home[k] is not host and k in self._remembers:
                lenders.setdefault(self.hosts.home[k], []).append(k)
        return [(at, at.actor, at.actor.lend.remote(ids)) for at, ids in lenders.items()]

    def _answer(self, one: Part) -> tuple[dict[ClientId, Any], bool] | None:
        """Return an actor's replies and whether memory changed; None: it must be asked again."""
        host, call = one.host, one.call
        try:
            replies, changed = ray.get(one.refs[0])
        except LOST as wrong:
            if is_other_actor(wrong):
                self._lose_lenders(one)
                return None
            refuse_lost_objects(wrong)
            if host.actor is one.actor and not self.hosts.may_come_back(host, wrong):
                self.hosts.lose(host, wrong, where=call.where, during=call.task.__name__)
            return None
        except FAILED as wrong:
            raise self._named(original(wrong), host) from wrong
        host.in_flight = host.unreachable_since = None
        return replies, changed

    def _lose_lenders(self, one: Part) -> None:
        """Find who did not lend memory: it may have no part of its own in the call."""
        for lender, actor, ref in one.lenders:
            try:
                ray.get(ref)
            except LOST as wrong:
                if lender.actor is actor and not self.hosts.may_come_back(lender, wrong):
                    self.hosts.lose(lender, wrong, where=one.call.where, during="lend")
            except FAILED as wrong:
                raise original(wrong) from wrong

    def _named(self, wrong: Exception, host: Host) -> Exception:
        """Add the node to what a client's task raised."""
        if not isinstance(wrong, ClientFailed):
            return wrong
        node = host.row["node"]
        return ClientFailed(wrong.client, wrong.task, wrong.reason, wrong.where, wrong.trace, node)

    # ---- leaving behind ----------------------------------------------------------------------

    def _leave(self, slow: Sequence[Part]) -> None:
        """Go on without actors past the deadline; they start anew, as if the call never was."""
        for one in slow:
            self._miss(one.call.on, one.call, [one.host])
            self.hosts.drop(one.host)
        if slow:
            self.hosts.mend(slow[0].call.where)

    def _miss(self, late: Sequence[ClientId], call: Call, hosts: Iterable[Host]) -> None:
        """Note that some clients of a call are late."""
        self.late += late
        at = sorted(f"{host.number} on node {host.row['node']}" for host in hosts)
        log.warning(
            "client actor %s did not finish %s in %s within runtime.round_deadline_s; clients %s "
            "miss the round",
            *(", ".join(at), call.task.__name__, call.where, ", ".join(map(str, late))),
            extra={"facts": {"event": "late", "clients": list(late)}},
        )


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

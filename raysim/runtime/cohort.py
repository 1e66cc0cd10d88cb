"""Clients that live in one process: the same code in a Ray actor and in the local federation."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysim.core.aggregation import Accumulator, ExactSum, on_grid, stack_on_grid
from raysim.core.threads import one_thread
from raysim.errors import ClientFailed, RaysimError, ServerFailed, StaleCall
from raysim.protocols import (
    Client,
    ClientId,
    ClientRecord,
    Contribution,
    GroupId,
    Stacked,
    Task,
    Tree,
    Where,
    World,
)
from raysim.storage.checkpoint import read_object, write_object


@dataclass(frozen=True)
class Call:
    """One task for some clients of a cohort, as it travels to an actor."""

    task: Task
    on: tuple[ClientId, ...]
    shared: Mapping[str, Any]
    each: Mapping[ClientId, Mapping[str, Any]]
    groups: Mapping[ClientId, GroupId] | None = None
    """Group of each client for a reduce; None for a map and a keep."""
    where: Where | None = None
    """The round it belongs to, for error messages."""
    number: int | None = None
    """Counts the calls of a run: one that arrives twice must not change memory twice."""
    guests: tuple[ClientRecord, ...] = ()
    """Clients of other cohorts that this one trains in this call, to share out the work."""
    keeps: bool = False
    """Whether each client's tree is stored by itself."""

    @property
    def sums(self) -> Mapping[ClientId, int] | None:
        """Number of the sum that each client adds to; its own where trees are kept."""
        return {k: k for k in self.on} if self.keeps else self.groups

    @property
    def may_be_missed(self) -> bool:
        """Whether another actor may train a client, or none: the task leaves no memory behind."""
        return self.sums is not None and bool(getattr(self.task, "stateless", False))


@dataclass(frozen=True)
class Outcome:
    """What a cohort gives back for a call."""

    replies: dict[ClientId, Any]
    sums: dict[int, ExactSum]
    """By group for a reduce, by client for a keep."""
    changed: bool
    """Whether any client's memory changed, so that the call must be replayed after a loss."""


class Cohort:
    """Some clients, their memory, and the world they see."""

    def __init__(self, records: Iterable[ClientRecord], world: World) -> None:
        self._world = world
        self._clients = {r.id: Client(record=r, world=world) for r in records}
        self._memory: dict[ClientId, Tree] = {k: {} for k in self._clients}
        self._unsaved: set[ClientId] = set()
        self._last_call = -1
        self._before: dict[ClientId, Tree] = {}
        """Memory before the last call, of the clients that it changed."""
        self._last_save: tuple[int | None, tuple[str, list[ClientId]] | None] = (None, None)

    def run(
        self,
        call: Call,
        resolve: Callable[[Any], Any],
        guests: Mapping[ClientId, Tree] | None = None,
    ) -> Outcome:
        """Run the call's task on its clients, in order of id.

        Sums of a reduce stay in exact form. ``guests`` is the memory of the call's guests. A call
        that comes a second time starts from the same memory as the first time.
        """
        self._rewind(call.number)
        if call.guests:
            return self._with_guests(call, guests or {}).run(replace(call, guests=()), resolve)
        shared, each = resolve((call.shared, {k: call.each.get(k, {}) for k in call.on}))
        groups = call.groups or {}
        own = {k: {"group": groups[k]} if k in groups else {} for k in call.on}
        arguments = {k: {**shared, **each[k], **own[k]} for k in call.on}
        sums: dict[GroupId, Accumulator] = {}
        with one_thread():
            together = self._together(call, arguments, sums)
            if together is not None:
                return Outcome(together, _taken(sums), False)
            replies, changed = self._one_by_one(call, arguments, sums)
        return Outcome(replies, _taken(sums), changed)

    def lend(self, clients: Iterable[ClientId]) -> dict[ClientId, Tree]:
        """Return the memory of clients that train elsewhere in this round."""
        return {k: self._memory[k] for k in clients}

    def save(self, folder: str, number: int | None = None) -> tuple[str, list[ClientId]] | None:
        """Write the memory that changed since the last save as one object.

        None when nothing did. The save ``number`` asked for again gives the same answer.
        """
        if number is not None and number == self._last_save[0]:
            return self._last_save[1]
        saved = None
        if self._unsaved:
            clients = sorted(self._unsaved)
            tree = {f"{k}/{name}": a for k in clients for name, a in self._memory[k].items()}
            saved = write_object(folder, tree), clients
        self._unsaved.clear()
        self._last_save = (number, saved)
        return saved

    def load(self, folder: str, shards: Mapping[str, Iterable[ClientId]]) -> None:
        """Set every client's memory to that of a commit."""
        self._memory = {k: {} for k in self._clients}
        self._unsaved.clear()
        self._before = {}
        for digest, clients in shards.items():
            wanted = set(clients) & self._clients.keys()
            if not wanted:
                continue
            memory: dict[ClientId, dict[str, np.ndarray]] = {k: {} for k in wanted}
            for key, array in read_object(folder, digest).items():
                client, _, name = key.partition("/")
                if int(client) in wanted:
                    memory[int(client)][name] = array
            self._memory.update(memory)

    def adopt(
        self,
        records: Iterable[ClientRecord],
        folder: str,
        shards: Mapping[str, Iterable[ClientId]],
        calls: Iterable[Call],
        resolve: Callable[[Any], Any],
    ) -> None:
        """Take clients over: their memory is that of a commit and of ``calls``, made since then."""
        new = Cohort(records, self._world)
        new.load(folder, shards)
        for call in calls:
            new.run(replace(call, number=None), resolve)
        self._clients.update(new._clients)
        self._memory.update(new._memory)
        self._before = {k: tree for k, tree in self._before.items() if k not in new._clients}
        self._unsaved = (self._unsaved - new._clients.keys()) | new._unsaved

    def release(self, clients: Iterable[ClientId]) -> None:
        """Forget clients that moved elsewhere."""
        for k in clients:
            self._clients.pop(k, None)
            self._memory.pop(k, None)
            self._unsaved.discard(k)

    def _rewind(self, number: int | None) -> None:
        """Take memory back to before the call ``number`` if this is not its first time."""
        if number is None:
            return
        if number < self._last_call:
            raise StaleCall(f"call {number} came after call {self._last_call}; nobody waits for it")
        if number == self._last_call:
            self._memory.update(self._before)
        self._last_call, self._before = number, {}

    def _with_guests(self, call: Call, memory: Mapping[ClientId, Tree]) -> Cohort:
        """Return a cohort of this call's clients, own and guests."""
        visiting = getattr(self._world, "visiting", None)  # a world may have a cheaper side
        together = Cohort(call.guests, visiting() if visiting else self._world)
        together._memory.update(memory)
        # A client that moved away may still be here, with memory that is no longer its own.
        own = (set(call.on) & self._clients.keys()) - {r.id for r in call.guests}
        together._clients.update({k: self._clients[k] for k in own})
        together._memory.update({k: self._memory[k] for k in own})
        return together

    def _one_by_one(
        self, call: Call, arguments: Mapping[ClientId, Any], sums: dict[GroupId, Accumulator]
    ) -> tuple[dict[ClientId, Any], bool]:
        replies: dict[ClientId, Any] = {}
        groups, changed = call.sums, False
        for k in call.on:
            memory, reply = self._attempt(call, k, arguments[k])
            if memory is not self._memory[k]:
                if call.may_be_missed:
                    reason = (
                        "it is declared stateless but returned another memory; return the one it "
                        "was given, or drop the declaration (a method: stateless = False)"
                    )
                    raise ClientFailed(k, call.task.__name__, reason, call.where)
                self._before.setdefault(k, self._memory[k])
                self._memory[k], changed = memory, True
                self._unsaved.add(k)
            if groups is not None:
                reply = self._add(call, k, sums.setdefault(groups[k], Accumulator()), reply)
            replies[k] = reply
        return replies, changed

    def _together(
        self, call: Call, arguments: Mapping[ClientId, Any], sums: dict[GroupId, Accumulator]
    ) -> dict[ClientId, Any] | None:
        """Run the task's variant for many clients; None where it has none or passes."""
        together = getattr(call.task, "together", None)
        if together is None:
            return None
        clients = [self._clients[k] for k in call.on]
        memories = [self._memory[k] for k in call.on]
        try:
            parts = together(clients, memories, [arguments[k] for k in call.on])
            return None if parts is None else self._collect(call, parts, sums)
        except ClientFailed as wrong:
            trace = wrong.trace or traceback.format_exc()
            raise ClientFailed(wrong.client, wrong.task, wrong.reason, call.where, trace) from wrong
        except RaysimError:
            raise
        except Exception:
            self._one_by_one(call, arguments, {})  # the one that fails alone is the one to name
            raise

    def _collect(
        self, call: Call, parts: Iterator[Stacked], sums: dict[GroupId, Accumulator]
    ) -> dict[ClientId, Any]:
        replies: dict[ClientId, Any] = {}
        groups = call.sums
        for part in parts:
            replies.update(zip(part.ids, part.replies, strict=True))
            if groups is not None:
                self._add_stack(call, groups, part, sums)
        return {k: replies[k] for k in call.on}

    def _add_stack(
        self,
        call: Call,
        groups: Mapping[ClientId, GroupId],
        part: Stacked,
        sums: dict[GroupId, Accumulator],
    ) -> None:
        assert part.tree is not None
        assert part.weights is not None
        own = np.array([groups[k] for k in part.ids])
        for g in np.unique(own).tolist():
            rows = np.flatnonzero(own == g)
            every = len(rows) == len(own)
            tree = part.tree if every else {name: a[rows] for name, a in part.tree.items()}
            total = sums.setdefault(g, Accumulator())
            try:
                total.add(stack_on_grid(tree, part.weights[rows]))
            except (ValueError, OverflowError):  # one after another names the client it is about
                for i in rows.tolist():
                    one = {name: a[i] for name, a in part.tree.items()}
                    self._add(call, part.ids[i], total, Contribution(one, float(part.weights[i])))

    def _attempt(self, call: Call, k: ClientId, arguments: Mapping[str, Any]) -> tuple[Tree, Any]:
        try:
            return call.task(self._clients[k], self._memory[k], arguments)
        except RaysimError:
            raise
        except Exception as wrong:
            reason = f"{type(wrong).__name__}: {wrong}"
            name = call.task.__name__
            raise ClientFailed(k, name, reason, call.where, traceback.format_exc()) from wrong

    def _add(self, call: Call, k: ClientId, total: Accumulator, reply: Any) -> Any:
        if not isinstance(reply, Contribution):
            got = type(reply).__name__
            what = "keep" if call.keeps else "reduce"
            reason = f"{what} needs a Contribution, got {got}"
            raise ClientFailed(k, call.task.__name__, reason, call.where)
        try:
            total.add(on_grid(reply.tree, reply.weight))
        except (ValueError, OverflowError) as wrong:
            reason = f"{wrong}; if training diverged, lower train.lr"
            raise ClientFailed(k, call.task.__name__, reason, call.where) from wrong
        return reply.reply


def _taken(sums: Mapping[GroupId, Accumulator]) -> dict[GroupId, ExactSum]:
    return {g: total.take() for g, total in sums.items()}


def run_at_server(
    task: Callable[..., Any], arguments: Mapping[str, Any], where: Where | None
) -> Any:
    """Run a server-side function with one thread; what it raises names it and the round."""
    try:
        with one_thread():
            return task(**arguments)
    except RaysimError:
        raise
    except Exception as wrong:
        reason = f"{type(wrong).__name__}: {wrong}"
        raise ServerFailed(task.__name__, reason, where, traceback.format_exc()) from wrong


def merge_shards(
    shards: Mapping[str, Iterable[ClientId]], saved: Iterable[tuple[str, list[ClientId]]]
) -> dict[str, list[ClientId]]:
    """Return which object holds which client's newest memory; objects without any are dropped."""
    home = {k: digest for digest, clients in shards.items() for k in clients}
    for digest, clients in saved:
        home.update(dict.fromkeys(clients, digest))
    merged: dict[str, list[ClientId]] = {}
    for k in sorted(home):
        merged.setdefault(home[k], []).append(k)
    return merged


def resolve_with(fetch: Callable[[list[Any]], list[Any]], kind: type[Any]) -> Callable[[Any], Any]:
    """Return a function that replaces handles of class ``kind`` in dicts, lists and tuples.

    All of them are fetched at once, and one that stands in several places only once.
    """

    def handles(value: Any) -> Iterator[Any]:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, Mapping | list | tuple):
            for item in value.values() if isinstance(value, Mapping) else value:
                yield from handles(item)

    def replaced(value: Any, trees: Mapping[Any, Any]) -> Any:
        if isinstance(value, kind):
            return trees[id(value)]
        if isinstance(value, Mapping):
            return {key: replaced(item, trees) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(replaced(item, trees) for item in value)
        return value

    def resolve(value: Any) -> Any:
        found = {id(handle): handle for handle in handles(value)}
        trees = fetch(list(found.values())) if found else []
        return replaced(value, dict(zip(found, trees, strict=True)))

    return resolve

"""Who runs where, decided before anything starts. Pure: resources in, plan out."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysim.errors import EnvironmentNotFit
from raysim.settings import RuntimeSettings, ShareSettings


@dataclass(frozen=True)
class Node:
    """Resources of one machine of the cluster."""

    name: str
    cpus: float
    gpus: float
    id: str = ""
    """What Ray calls it; two nodes may share a name."""
    is_driver: bool = False
    """Whether the coordinator runs there."""
    is_head: bool = False
    """Whether it is the cluster's head."""

    def slots(self, share: ShareSettings) -> int:
        """How many actors of this share fit."""
        by_cpu, gpus = math.floor(self.cpus / share.cpus + 1e-9), float(share.gpus)
        if not gpus:
            return by_cpu
        if gpus >= 1:
            return min(by_cpu, math.floor(self.gpus / gpus + 1e-9))
        # A slice lives on one GPU: 3 GPUs hold 3 actors of 0.6, not 5.
        return min(by_cpu, math.floor(self.gpus) * math.floor(1 / gpus + 1e-9))


@dataclass(frozen=True)
class Plan:
    """Who runs where. Actors and clients by position in their lists."""

    cohorts: tuple[tuple[int, ...], ...]
    """Clients of each client actor."""
    homes: tuple[Node, ...]
    """Node of each client actor; Ray may choose another one with the same room."""
    bundles: tuple[dict[str, float], ...]
    """What to reserve: the share of an actor, or a GPU with the shares of those on it."""
    seats: tuple[int, ...]
    """Bundle of each client actor."""
    more: tuple[dict[str, float], ...]
    """Bundles that the run takes up later, when the autoscaler has brought nodes for them."""
    servers: tuple[Node, ...]
    """Node of each parameter server that starts at once."""
    runtime: RuntimeSettings
    """The settings with the share of an actor worked out."""


def plan(sizes: Sequence[int], nodes: Sequence[Node], runtime: RuntimeSettings) -> Plan:
    """Spread clients with ``sizes`` samples over actors that fit the nodes.

    Or say why that cannot be.
    """
    runtime = resolved(runtime, len(sizes), nodes)
    share = runtime.per_actor
    fewest, most = runtime.limits(len(sizes))
    if fewest > len(sizes):
        raise EnvironmentNotFit(
            f"runtime.actors is {runtime.actors}, but there are only {len(sizes)} clients and an "
            f"actor hosts "
            f"at least one; lower runtime.actors to {len(sizes)} or raise data.partition.clients"
        )
    room = sum(node.slots(share) for node in nodes)
    most = min(most, len(sizes), max(room, runtime.autoscale or 0))
    if fewest > most:
        raise EnvironmentNotFit(_does_not_fit(fewest, most, nodes, share))
    starts = ".." in str(runtime.actors)  # with what is there
    wanted = max(fewest, min(most, room)) if starts else most
    homes = spread(nodes, share, min(wanted, room)) + _brought(share, wanted - room)
    bundles, seats = bundled(homes, share)
    more = bundled(_brought(share, most - max(wanted, room)), share)[0]
    counts = Counter(home.id for home in homes)
    num_servers = 1 if runtime.servers == "auto" else runtime.servers
    servers = near(nodes, [counts] * num_servers)
    return Plan(balance(sizes, wanted), homes, bundles, seats, more, servers, runtime)


def resolved(runtime: RuntimeSettings, clients: int, nodes: Sequence[Node]) -> RuntimeSettings:
    """Return the settings with numbers for ``per_actor``.

    One actor per client shrinks its CPU share until all fit; GPUs are shared evenly on request.
    """
    share, gpus = runtime.per_actor, sum(math.floor(node.gpus) for node in nodes)
    every = runtime.actors == "per_client"
    if share.gpus == "auto":
        by_cpu = clients if every else sum(n.slots(replace(share, gpus=0.0)) for n in nodes)
        count = min(max(runtime.limits(clients)[1], 1), max(by_cpu, 1))
        # Ten-thousandths, rounded down: what Ray counts in.
        on_one = math.ceil(count / gpus) if gpus else 0
        share = replace(share, gpus=(10_000 // on_one) / 10_000 if on_one else 0.0)
    if every and not runtime.autoscale:

        def fits(cpus: float) -> bool:
            smaller = replace(share, cpus=cpus)
            return sum(node.slots(smaller) for node in nodes) >= clients

        cpus = share.cpus if fits(share.cpus) else _largest(fits, share.cpus)
        share = share if cpus is None else replace(share, cpus=cpus)
    return replace(runtime, per_actor=share)


def _brought(share: ShareSettings, count: int) -> tuple[Node, ...]:
    """Return homes on nodes that an autoscaler is to bring: a GPU each, or an actor's share."""
    gpus = float(share.gpus)
    on_one = math.floor(1 / gpus + 1e-9) if 0 < gpus < 1 else 1
    cpus, whole = on_one * share.cpus, max(gpus, 1.0) if gpus else 0.0
    nodes = [Node("autoscaler", cpus, whole, f"+{i}") for i in range(max(count, 0))]
    return tuple(nodes[i // on_one] for i in range(len(nodes)))


def bundled(
    homes: Sequence[Node], share: ShareSettings
) -> tuple[tuple[dict[str, float], ...], tuple[int, ...]]:
    """Return what to reserve for actors, and the bundle of each of them.

    Ray fills one GPU before the next. So slices get whole GPUs as bundles, and each node's actors
    are dealt to its GPUs in turn; a node that needs one GPU gives the part that is used.
    """
    gpus = float(share.gpus)
    sliced = 0 < gpus < 1
    on_node = Counter(home.id for home in homes)
    used = {n.id: min(math.floor(n.gpus), on_node[n.id]) if sliced else 0 for n in homes}
    places: dict[tuple[str, int], int] = {}
    seats, dealt = [], Counter[str]()
    for home in homes:
        turn = dealt[home.id] % used[home.id] if sliced else dealt[home.id]
        dealt[home.id] += 1
        seats.append(places.setdefault((home.id, turn), len(places)))
    whole = any(count > 1 for count in used.values())
    bundles = []
    for bundle in range(len(places)):
        count = seats.count(bundle)
        asked = {"CPU": round(count * share.cpus, 4)}
        bundles.append(asked | ({"GPU": 1.0 if whole else round(count * gpus, 4)} if gpus else {}))
    return tuple(bundles), tuple(seats)


def describe_plan(
    sizes: Sequence[int], nodes: Sequence[Node], runtime: RuntimeSettings
) -> dict[str, Any]:
    """Return a plan as plain values, node by node, for people to look at."""
    layout = plan(sizes, nodes, runtime)
    share = layout.runtime.per_actor
    brought = {home.id: home for home in layout.homes if home.name == "autoscaler"}
    workers = sum(not node.is_head for node in nodes)
    many = runtime.servers == "auto" and len(nodes) > 1
    servers = f"up to {MOST_SERVERS * max(workers, 1)}" if many else len(layout.servers)

    def actors(node: Node) -> list[dict[str, int]]:
        own = [c for c, home in zip(layout.cohorts, layout.homes, strict=True) if home == node]
        return [{"clients": len(c), "samples": sum(sizes[k] for k in c)} for c in own]

    return {
        "clients": len(sizes),
        "per_actor": {"cpus": share.cpus, "gpus": share.gpus},
        "servers": servers,
        "nodes": [
            {
                "name": node.name,
                "cpus": node.cpus,
                "gpus": node.gpus,
                "actors": actors(node),
                "servers": layout.servers.count(node),
                "coordinator": node.is_driver,
            }
            for node in (*nodes, *brought.values())
        ],
    }


def spread(nodes: Sequence[Node], share: ShareSettings, count: int) -> tuple[Node, ...]:
    """Return a node for each of ``count`` actors that fit: all nodes filled to the same part."""
    slots = [node.slots(share) for node in nodes]

    def part(i: int, used: int) -> tuple[float, str, str, int, int]:
        return (used + 1) / slots[i], nodes[i].name, nodes[i].id, i, used + 1

    heap = [part(i, 0) for i in range(len(nodes)) if slots[i]]
    heapq.heapify(heap)
    homes = []
    for _ in range(count):
        *_, i, used = heap[0]
        homes.append(nodes[i])
        if used < slots[i]:
            heapq.heapreplace(heap, part(i, used))
        else:
            heapq.heappop(heap)
    return tuple(homes)


def share_out(
    home: Mapping[int, int], sizes: Mapping[int, int], actors: Iterable[int]
) -> dict[int, int]:
    """Return an actor for each client: its home, unless that is gone or leaves others idle.

    A random tenth of the clients is never spread evenly, and a round takes as long as the actor
    with most to do. The smallest clients of the fullest actor move while that shortens the round.
    """
    members: dict[int, list[int]] = {a: [] for a in actors}
    loads = dict.fromkeys(members, 0)
    full, empty = [(0, a) for a in loads], [(0, a) for a in loads]
    heapq.heapify(full)
    heapq.heapify(empty)

    def load(actor: int, work: int) -> None:
        loads[actor] += work
        heapq.heappush(full, (-loads[actor], actor))
        heapq.heappush(empty, (loads[actor], actor))

    def first(heap: list[tuple[int, int]]) -> int:
        while abs(heap[0][0]) != loads[heap[0][1]]:  # an older load of this actor
            heapq.heappop(heap)
        return heap[0][1]

    place = dict(home)
    by_size = sorted(home, key=lambda k: (-sizes[k], k))
    for client in sorted(by_size, key=lambda k: home[k] not in members):  # the homeless last
        if home[client] not in members:
            place[client] = first(empty)
        members[place[client]].append(client)
        load(place[client], max(sizes[client], 1))
    while True:
        fullest, emptiest = first(full), first(empty)
        if len(members[fullest]) < 2:
            return place
        client = min(members[fullest], key=lambda k: (sizes[k], -k))
        work = max(sizes[client], 1)
        if loads[emptiest] + work >= loads[fullest]:
            return place
        members[fullest].remove(client)
        members[emptiest].append(client)
        load(fullest, -work)
        load(emptiest, work)
        place[client] = emptiest


MOST_SERVERS = 4
"""Parameter servers on one node, unless all nodes have as many."""


def near(nodes: Sequence[Node], clients: Sequence[Mapping[str, int]]) -> tuple[Node, ...]:
    """Return a node for each server: that with most of its clients, by node id.

    The head takes one only where there is no other node, since models of all groups would meet
    there.
    """
    workers = [node for node in nodes if not node.is_head] or list(nodes)
    used: Counter[str] = Counter()
    chosen = []
    for own in clients:
        crowd = {n.id: used[n.id] if used[n.id] >= MOST_SERVERS else 0 for n in workers}
        best = min(
            workers, key=lambda n: (crowd[n.id], -own.get(n.id, 0), used[n.id], n.name, n.id)
        )
        used[best.id] += 1
        chosen.append(best)
    return tuple(chosen)


def balance(sizes: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Cut clients into ``count`` cohorts of nearly equal work.

    Largest first, to the least loaded; clients of one size go to the cohorts in runs, so that
    neighbours stay together.
    """
    heap = [(0, 0, a) for a in range(count)]
    members: list[list[int]] = [[] for _ in range(count)]
    by_size = sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))
    for size, group in itertools.groupby(by_size, key=lambda k: sizes[k]):
        same, turns = list(group), Counter[int]()
        for _ in same:
            load, hosted, lightest = heap[0]
            heapq.heapreplace(heap, (load + max(size, 1), hosted + 1, lightest))
            turns[lightest] += 1
        ahead = iter(same)
        for a in sorted(turns):
            members[a] += itertools.islice(ahead, turns[a])
    return tuple(tuple(sorted(m)) for m in members)


def _does_not_fit(wanted: int, room: int, nodes: Sequence[Node], share: ShareSettings) -> str:
    have = "; ".join(f"{n.name}: {n.cpus:g} CPUs, {n.gpus:g} GPUs" for n in nodes) or "no node"
    remedy = [f"lower runtime.actors to {room}"] if room else []
    remedy += _smaller_shares(wanted, nodes, share)
    return (
        f"asked for {wanted} client actors of {share.cpus:g} CPUs and {share.gpus:g} GPUs each "
        f"(runtime.actors, runtime.per_actor); room for {room} exists ({have}); "
        + " or ".join(remedy or ["add nodes"])
    )


def _smaller_shares(wanted: int, nodes: Sequence[Node], share: ShareSettings) -> list[str]:
    """Return ways to make ``wanted`` actors fit; each is enough by itself."""

    def fits(cpus: float, gpus: float) -> bool:
        smaller = ShareSettings(cpus=cpus, gpus=gpus)
        return sum(node.slots(smaller) for node in nodes) >= wanted

    cpus = _largest(lambda value: fits(value, float(share.gpus)), share.cpus)
    gpus = _largest_slice(lambda value: fits(share.cpus, value), float(share.gpus))
    ways = [_say_gpus(gpus, nodes)] if gpus is not None else []
    ways += [_say_cpus(cpus)] if cpus is not None else []
    if ways:
        return ways
    gpus = _largest_slice(lambda value: fits(0.001, value), float(share.gpus))
    if gpus is None:
        return []
    both = _largest(lambda value: fits(value, gpus), share.cpus)
    return [] if both is None else [f"{_say_gpus(gpus, nodes)} and {_say_cpus(both)}"]


def _largest(fits: Callable[[float], bool], below: float) -> float | None:
    """Return the largest multiple of 0.001 under ``below`` that fits; smaller ones fit too."""
    grid = range(1, math.ceil(round(below * 1000, 6)))
    count = bisect.bisect_left(grid, True, key=lambda i: not fits(i / 1000))
    return grid[count - 1] / 1000 if count else None


def _largest_slice(fits: Callable[[float], bool], below: float) -> float | None:
    """Return the largest GPU share under ``below`` that fits; 0 where no slice does."""
    whole = (float(i) for i in range(math.ceil(below) - 1, 0, -1) if fits(float(i)))
    found = next(whole, None) or _largest(fits, min(below, 1.0))
    return 0.0 if found is None and below > 0 and fits(0.0) else found


def _say_gpus(gpus: float, nodes: Sequence[Node]) -> str:
    if gpus > 0:
        return f"lower runtime.per_actor.gpus to {gpus:g}"
    why = "" if any(node.gpus for node in nodes) else " (no GPU here)"
    return f"set runtime.per_actor.gpus to 0{why}"


def _say_cpus(cpus: float) -> str:
    return f"lower runtime.per_actor.cpus to {cpus:g}"

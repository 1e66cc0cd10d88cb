"""Who runs where, decided before anything starts. Pure: resources in, plan out."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

    def slots(self, share: ShareSettings) -> int:
        """How many actors of this share fit."""
        by_cpu = math.floor(self.cpus / share.cpus + 1e-9)
        if not share.gpus:
            return by_cpu
        if share.gpus >= 1:
            return min(by_cpu, math.floor(self.gpus / share.gpus + 1e-9))
        # A slice lives on one GPU: 3 GPUs hold 3 actors of 0.6, not 5.
        return min(by_cpu, math.floor(self.gpus) * math.floor(1 / share.gpus + 1e-9))


@dataclass(frozen=True)
class Plan:
    """Who runs where. Actors and clients by position in their lists."""

    cohorts: tuple[tuple[int, ...], ...]
    """Clients of each client actor."""
    homes: tuple[Node, ...]
    """Node of each client actor."""
    servers: tuple[Node, ...]
    """Node of each parameter server."""


def plan(sizes: Sequence[int], nodes: Sequence[Node], runtime: RuntimeSettings) -> Plan:
    """Spread clients with ``sizes`` samples over actors that fit the nodes.

    Or say why that cannot be.
    """
    share = runtime.per_actor
    room = sum(node.slots(share) for node in nodes)
    wanted = min(room, len(sizes)) if runtime.actors == "auto" else runtime.actors
    if wanted > len(sizes):
        raise EnvironmentNotFit(
            f"runtime.actors is {wanted}, but there are only {len(sizes)} clients and an "
            f"actor hosts "
            f"at least one; lower runtime.actors to {len(sizes)} or raise data.partition.clients"
        )
    if wanted < 1 or wanted > room:
        raise EnvironmentNotFit(_does_not_fit(max(wanted, 1), room, nodes, share))
    homes = spread(nodes, share, wanted)
    return Plan(balance(sizes, wanted), homes, _server_nodes(nodes, homes, runtime.servers))


def describe_plan(
    sizes: Sequence[int], nodes: Sequence[Node], runtime: RuntimeSettings
) -> dict[str, Any]:
    """Return a plan as plain values, node by node, for people to look at."""
    layout = plan(sizes, nodes, runtime)

    def actors(node: Node) -> list[dict[str, int]]:
        own = [c for c, home in zip(layout.cohorts, layout.homes, strict=True) if home == node]
        return [{"clients": len(c), "samples": sum(sizes[k] for k in c)} for c in own]

    return {
        "clients": len(sizes),
        "per_actor": {"cpus": runtime.per_actor.cpus, "gpus": runtime.per_actor.gpus},
        "servers": runtime.servers,
        "nodes": [
            {
                "name": node.name,
                "cpus": node.cpus,
                "gpus": node.gpus,
                "actors": actors(node),
                "servers": layout.servers.count(node),
                "coordinator": node.is_driver,
            }
            for node in nodes
        ],
    }


def spread(nodes: Sequence[Node], share: ShareSettings, count: int) -> tuple[Node, ...]:
    """Return a node for each of ``count`` actors that fit: all nodes filled to the same part."""
    slots = [node.slots(share) for node in nodes]
    used = [0] * len(nodes)
    homes = []
    for _ in range(count):
        free = (i for i in range(len(nodes)) if used[i] < slots[i])
        emptiest = min(free, key=lambda i: ((used[i] + 1) / slots[i], nodes[i].name, nodes[i].id))
        used[emptiest] += 1
        homes.append(nodes[emptiest])
    return tuple(homes)


def share_out(home: Mapping[int, int], sizes: Mapping[int, int], num_actors: int) -> dict[int, int]:
    """Return an actor for each client of a call: its home, unless that leaves others idle.

    A random tenth of the clients is never spread evenly, and a round takes as long as the actor
    with most to do. The smallest clients of the fullest actor move while that shortens the round.
    """
    place = dict(home)
    members: list[list[int]] = [[] for _ in range(num_actors)]
    for client in sorted(home, key=lambda k: (-sizes[k], k)):
        members[home[client]].append(client)
    loads = [sum(max(sizes[k], 1) for k in own) for own in members]
    while True:
        fullest = max(range(num_actors), key=lambda a: (loads[a], -a))
        emptiest = min(range(num_actors), key=lambda a: (loads[a], a))
        if len(members[fullest]) < 2:
            return place
        client = members[fullest][-1]
        work = max(sizes[client], 1)
        if loads[emptiest] + work >= loads[fullest]:
            return place
        members[emptiest].append(members[fullest].pop())
        loads[fullest] -= work
        loads[emptiest] += work
        place[client] = emptiest


def _server_nodes(nodes: Sequence[Node], homes: Sequence[Node], count: int) -> tuple[Node, ...]:
    """Return a node for each server, one after another.

    Nodes without client actors, where servers take nothing from clients; else all nodes. The
    coordinator's node comes first: what it holds dies only with the run itself.
    """
    ordered = sorted(nodes, key=lambda n: (not n.is_driver, n.name, n.id))
    taken = {home.id for home in homes}
    candidates = [node for node in ordered if node.id not in taken] or ordered
    return tuple(candidates[i % len(candidates)] for i in range(count))


def balance(sizes: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Cut clients into ``count`` cohorts of nearly equal work.

    Largest first, to the least loaded.
    """
    loads = [0] * count
    members: list[list[int]] = [[] for _ in range(count)]
    for client in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
        lightest = min(range(count), key=lambda a: (loads[a], len(members[a]), a))
        loads[lightest] += max(sizes[client], 1)
        members[lightest].append(client)
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

    cpus = _largest(lambda value: fits(value, share.gpus), share.cpus)
    gpus = _largest_slice(lambda value: fits(share.cpus, value), share.gpus)
    ways = [_say_gpus(gpus, nodes)] if gpus is not None else []
    ways += [_say_cpus(cpus)] if cpus is not None else []
    if ways:
        return ways
    gpus = _largest_slice(lambda value: fits(0.001, value), share.gpus)
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

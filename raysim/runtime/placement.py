"""Who runs where, decided before anything starts. Pure: resources in, plan out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Strict

from raysim.errors import EnvironmentNotFit
from raysim.settings import check, settings

SMALLEST_SHARE = 0.0001
"""Ray counts resources in ten-thousandths."""


@settings
class ShareSettings:
    """What one client actor is pinned to."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            check(math.isfinite(value), name, "must be finite", got=value)
            check(value >= 0, name, "must not be negative", got=value)
            fine = math.isclose(value, round(value, 4), rel_tol=0, abs_tol=1e-9)
            check(fine, name, f"cannot be finer than {SMALLEST_SHARE}", got=value)
        whole = self.gpus <= 1 or float(self.gpus).is_integer()
        check(whole, "gpus", "above 1 must be a whole number of GPUs", got=self.gpus)
        check(self.cpus >= 0.001, "cpus", "must be at least 0.001", got=self.cpus)


@settings
class RuntimeSettings:
    """Where the clients live. None of this changes a result."""

    kind: Literal["auto", "local", "ray"] = "auto"
    address: str | None = None
    """Ray cluster to join ("auto" or host:port); null: start one on this machine."""
    actors: Annotated[int, Strict()] | Literal["auto"] = "auto"
    """Client actors; auto: as many as the resources hold, at most one per client."""
    per_actor: ShareSettings = ShareSettings()
    servers: int = 1
    """Parameter-server actors; group m lives on server m mod servers."""
    max_restarts: int = 3
    """How often one actor may be rebuilt between two commits before the run gives up."""
    start_timeout_s: float = 60.0
    """How long actors may take to start, and how long to wait for resources held by others."""

    def __post_init__(self) -> None:
        ok = self.actors == "auto" or self.actors >= 1
        check(ok, "actors", "must be auto or at least 1", got=self.actors)
        check(self.servers >= 1, "servers", "must be at least 1", got=self.servers)
        check(self.max_restarts >= 0, "max_restarts", "must not be negative", got=self.max_restarts)
        check(
            self.start_timeout_s > 0,
            "start_timeout_s",
            "must be positive",
            got=self.start_timeout_s,
        )
        remote = self.address is None or self.kind != "local"
        check(remote, "address", "has no meaning with kind: local", got=self.address, do="drop it")


@dataclass(frozen=True)
class Node:
    """Resources of one machine of the cluster."""

    name: str
    cpus: float
    gpus: float

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
    """Clients of each actor, by position in the actor list."""

    cohorts: tuple[tuple[int, ...], ...]


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
    return Plan(balance(sizes, wanted))


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
    remedies = [f"lower runtime.actors to {room}"] if room else []
    smaller = _smaller_share(wanted, nodes, share)
    changes = [] if smaller is None else _changes(share, smaller)
    if changes:
        remedies.append(" and ".join(changes))
    return (
        f"asked for {wanted} client actors of {share.cpus:g} CPUs and {share.gpus:g} GPUs each "
        f"(runtime.actors, runtime.per_actor); room for {room} exists ({have}); "
        + (" or ".join(remedies) or "add nodes to the cluster")
    )


def _changes(share: ShareSettings, smaller: ShareSettings) -> list[str]:
    changes = []
    if smaller.cpus < share.cpus:
        changes.append(f"lower runtime.per_actor.cpus to {smaller.cpus:g}")
    if smaller.gpus == 0 < share.gpus:
        changes.append("set runtime.per_actor.gpus to 0 (no GPU here)")
    elif smaller.gpus < share.gpus:
        changes.append(f"lower runtime.per_actor.gpus to {smaller.gpus:g}")
    return changes


def _smaller_share(
    wanted: int, nodes: Sequence[Node], share: ShareSettings
) -> ShareSettings | None:
    """Return the largest share of which ``wanted`` fit, changing CPUs first, then GPUs too."""
    gpus = [share.gpus]
    if share.gpus:
        most = [math.floor(1e4 / m) / 1e4 for m in range(1, wanted + 1)]
        gpus += [g for g in (share.gpus - 1, *most) if 0 < g < share.gpus and _is_slice(g)]
        gpus += [0.0] if not any(n.gpus >= 1 for n in nodes) else []
    cpus = {math.floor(1e4 * n.cpus / m) / 1e4 for n in nodes for m in range(1, wanted + 1)}
    smaller = sorted((c for c in cpus if 0.001 <= c < share.cpus), reverse=True)
    for gpu in sorted(gpus, reverse=True):
        for cpu in (share.cpus, *smaller):
            candidate = ShareSettings(cpus=cpu, gpus=gpu)
            if sum(node.slots(candidate) for node in nodes) >= wanted:
                return candidate
    return None


def _is_slice(gpus: float) -> bool:
    return gpus <= 1 or float(gpus).is_integer()

"""Names of actors, and places for clients': placement groups, waited for, looked up, given back."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysim.errors import EnvironmentNotFit
from raysim.protocols import ClientId
from raysim.runtime.placement import Node, Plan
from raysim.runtime.ray.connection import nodes, on_node

log = logging.getLogger(__name__)
SAY_S = 10.0
"""How often a run says that it waits for resources."""
GROUPS = "RAYSIM_GROUPS"
"""Variable whose value is part of the names of a run's placement groups, so that they are found."""
Bundle = dict[str, float]


class Names:
    """Names of actors as people read them: RUN/client-7, RUN/clients-0-31#2."""

    def __init__(self, run: str) -> None:
        self.run, self._used = run, Counter[str]()
        unique = os.environ.get(GROUPS, "") + uuid4().hex[:8]  # no other run or dying actor has it
        self.namespace = f"raysim-{run}-{unique}"

    def options(self, what: str) -> dict[str, str]:
        """Return Ray's options for the name of a new actor."""
        name = f"{self.run}/{what}"
        self._used[name] += 1
        generation = f"#{self._used[name]}" if self._used[name] > 1 else ""
        return {"name": name + generation, "namespace": self.namespace}


def clients_name(clients: Iterable[ClientId]) -> str:
    """Return what an actor of these clients is called: client-7, clients-0-31, clients-0,4-6,9."""
    ids = sorted(clients)
    runs = []
    for _, same in itertools.groupby(enumerate(ids), key=lambda at: at[1] - at[0]):
        run = [k for _, k in same]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    more = f"...{len(ids)}" if len(runs) > 4 else ""
    return ("client-" if len(ids) == 1 else "clients-") + (",".join(runs[:4]) or "none") + more


@dataclass(frozen=True)
class Seat:
    """A share of one bundle of a group; or of a node, where groups are held up."""

    group: Any
    bundle: int
    node: Node | None = None

    @property
    def strategy(self) -> Any:
        """What Ray is told when an actor is to start here."""
        if self.node is not None:
            return on_node(self.node)
        return PlacementGroupSchedulingStrategy(self.group, self.bundle)


class Seats:
    """The placement groups of a run.

    The first one holds the actors that the run begins with: all of them or none. Bundles that come
    later are groups by themselves, so that a lost one can be given back alone. Ray places the lost
    bundles of a group together or not at all, and before it looks at any other group.
    """

    def __init__(self, name: str) -> None:
        """``name``: one that no other run has, since names of groups must differ."""
        self._name, self._asked = name, 0
        self._groups: list[Any] = []

    def first(self, plan: Plan) -> list[Seat]:
        """Ask for the places that a run starts with; wait for them until its queue timeout."""
        group = self._reserve(plan.bundles)
        share, actors = plan.runtime.per_actor, len(plan.seats)
        what = f"room for {actors} client actors of {share.cpus:g} CPUs and {share.gpus:g} GPUs"
        self._wait(group, what, plan.runtime.queue_timeout_s)
        return [Seat(group, bundle) for bundle in plan.seats]

    def more(self, bundles: Sequence[Bundle], seats: Sequence[int]) -> list[Seat]:
        """Ask for places that may come when they can."""
        groups = [self._reserve([bundle]) for bundle in bundles]
        return [Seat(groups[bundle], 0) for bundle in seats]

    def _reserve(self, bundles: Sequence[Bundle]) -> Any:
        self._asked += 1
        name = f"{self._name}-{self._asked}"
        group = placement_group(list(bundles), strategy="SPREAD", name=name)
        self._groups.append(group)
        return group

    def _wait(self, group: Any, what: str, timeout_s: float) -> None:
        began = time.monotonic()
        while True:
            waited = time.monotonic() - began
            if group.wait(max(min(SAY_S, timeout_s - waited), 0.01)):
                return
            waited, free = time.monotonic() - began, ray.available_resources()
            now = f"free now: {free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs"
            if waited >= timeout_s:
                raise EnvironmentNotFit(
                    f"{what} each was not free within runtime.queue_timeout_s = {timeout_s:g} s; "
                    f"{now}; wait for other runs, lower runtime.actors or runtime.per_actor, or "
                    "raise runtime.queue_timeout_s"
                )
            log.warning(
                "waiting for %s each for %.0f s (at most %g s: runtime.queue_timeout_s); %s",
                *(what, waited, timeout_s, now),
                extra={"facts": {"event": "waiting", "seconds": round(waited, 1)}},
            )

    @property
    def is_held_up(self) -> bool:
        """Whether the first group waits for lost bundles, so that no other group is placed."""
        group = self._groups[0]
        return str(placement_group_table(group)["state"]) == "RESCHEDULING"

    def placed(self, seats: Sequence[Seat]) -> dict[Seat, str]:
        """Return the node id of each seat whose place is there now, on a node that lives."""
        living = {node.id for node in nodes(leaving=True)}
        tables = {
            seat.group.id: placement_group_table(seat.group)["bundles_to_node_id"]
            for seat in seats
            if seat.node is None
        }
        found = {
            seat: seat.node.id if seat.node else str(tables[seat.group.id].get(seat.bundle, ""))
            for seat in seats
        }
        return {seat: node for seat, node in found.items() if node in living}

    def give_back(self, seat: Seat) -> bool:
        """Remove a seat for good, where it is not one of the first group."""
        if seat.node is None and seat.group is self._groups[0]:
            return False
        if seat.node is None and seat.group in self._groups:
            self._groups.remove(seat.group)
            remove_placement_group(seat.group)
        return True

    def end(self) -> None:
        for group in self._groups:
            remove_placement_group(group)
        self._groups = []

"""The back end of studies on a cluster: a Ray task per cell.

A task runs all clients of its run in one process, or is the coordinator of a run with actors of
its own where the config asks for them. A task that is lost with its worker or node is started
again; the run goes on from its last commit, to the same bits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayTaskError, TaskCancelledError
from ray.util import get_placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.runtime.ray.connection import connect, find_cluster
from raysim.runtime.ray.failures import LOST
from raysim.runtime.ray.inspection import check_reachable
from raysim.runtime.ray.seats import GROUPS
from raysim.settings import RuntimeSettings
from raysim.storage.objects import absolute, place

log = logging.getLogger(__name__)
RETRIES = 3
"""How often a cell may be lost with its worker before it counts as failed."""
Perform = Callable[[Mapping[str, Any], Callable[..., None]], int]
"""(what the cell is told, how it tells of its rounds) -> exit code."""


class Mailbox:
    """Keeps what the tasks tell until the driver asks."""

    def __init__(self) -> None:
        self._events: list[tuple[str, dict[str, Any]]] = []

    def put(self, key: str, event: dict[str, Any]) -> None:
        self._events.append((key, event))

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        events, self._events = self._events, []
        return events


def perform_on_node(
    perform: Perform, key: str, told: Mapping[str, Any], mailbox: Any, folder: str, mark: str
) -> int:
    """Do the work of a cell here, below the folder of the driver where that is shared."""
    os.environ[GROUPS] = mark
    if Path(folder).is_dir():
        os.chdir(folder)

    def tell(**event: Any) -> None:
        ray.get(mailbox.put.remote(key, event))  # it is there before the task ends

    return perform(told, tell)


class RayTasks:
    """Runs cells as tasks of the cluster that ``runtime`` names."""

    def __init__(
        self, perform: Perform, runtime: RuntimeSettings, jobs: int | None, *, output: str
    ) -> None:
        """Join the cluster; refuse an ``output`` that not all of its nodes share."""
        connect(runtime)
        check_reachable(absolute(place(output)))
        actors = runtime.kind == "ray" or runtime.actors != "auto" or runtime.per_actor.gpus
        self.local = not (actors or runtime.round_deadline_s)
        self.how = (
            f"each a task of the cluster at {find_cluster(runtime.address)[1]} "
            "(runtime.kind=local; runtime.kind=ray gives a run actors of its own)"
        )
        self._perform, self._jobs, self._folder = perform, jobs, os.getcwd()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()
        self._live: dict[Any, tuple[str, Mapping[str, Any], int]] = {}
        self._began: set[str] = set()
        self._is_stopping = False
        self._mark = uuid4().hex[:8]

    @property
    def at_once(self) -> int:
        """As asked for; else as many as there are CPUs now, or one run with actors."""
        cpus = int(ray.cluster_resources().get("CPU", 0)) if self.local else 1
        return self._jobs or max(cpus, 1)

    def start(self, key: str, told: Mapping[str, Any], losses: int = 0) -> None:
        alone = ray.remote(max_calls=1)(perform_on_node)  # a process per run, as on one machine
        task = alone.options(
            name=f"raysim {key}",
            num_cpus=1 if self.local else 0,
            max_retries=0,  # Ray would not know that the run goes on where it was
            scheduling_strategy="SPREAD",
        )
        told_where = self._mailbox, self._folder, self._mark_of(key)
        ref = task.remote(self._perform, key, told, *told_where)
        self._live[ref] = (key, told, losses)

    def events(self, timeout_s: float) -> Iterator[tuple[str, Mapping[str, Any]]]:
        ended, _ = ray.wait(list(self._live), num_returns=len(self._live), timeout=timeout_s)
        for key, event in ray.get(self._mailbox.take.remote()):
            self._began.add(key)
            yield key, event
        for ref in ended:
            key, told, losses = self._live.pop(ref)
            code, said = 0, ""
            try:
                code = ray.get(ref)
            except TaskCancelledError:
                code = 130
            except LOST as wrong:
                free_groups(self._mark_of(key))
                if self._is_stopping:
                    code = 130
                elif losses < RETRIES:
                    log.warning("%s: its worker was lost; it goes on with another one", key)
                    if key in self._began:  # else what it is to replace may still be there
                        told = {**told, "force": False, "resume": "auto"}
                    self.start(key, told, losses + 1)
                    continue
                else:
                    why = str(wrong).strip().partition("\n")[0]
                    lost = f"its worker was lost {losses + 1} times; the last time: {why}"
                    yield key, {"event": "error", "message": lost}
                    code = 1
            except RayTaskError as wrong:
                code, said = 1, str(wrong)
            yield key, {"event": "end", "code": code, "said": said}

    def stop(self) -> None:
        self._is_stopping = True
        for ref in self._live:
            ray.cancel(ref, recursive=False)  # as Ctrl-C: the run finishes its round and commits

    def close(self) -> None:
        for ref, (key, *_) in self._live.items():
            ray.cancel(ref, force=True)
            free_groups(self._mark_of(key))
        ray.kill(self._mailbox)

    def _mark_of(self, key: str) -> str:
        return f"{self._mark}.{key}."


def free_groups(mark: str) -> None:
    """Remove the placement groups of a lost cell: Ray keeps those of a task until the job ends."""
    for row in placement_group_table().values():
        if mark in row["name"] and row["state"] != "REMOVED":
            remove_placement_group(get_placement_group(row["name"]))

"""``bench cluster``: what a round costs the coordinator, against actors and nodes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks.options import Options
from benchmarks.report import Check, Report, say
from benchmarks.sides import SideFailed, environment

CLIENTS, GROUPS, SIZE = 128, 4, 10_000
"""Clients, groups, and float32 numbers of a model."""
WORK_S = 0.01
"""Seconds of a core for each client and round, however many actors share them."""
FULL = {1: (2, 8), 4: (2, 8, 32), 8: (2, 64)}
"""Actors to measure, by raylets."""
TARGETS = {"driver CPU": 3.0, "wall": 1.3}
"""32 actors on 4 raylets over 2 actors there."""


def run(options: Options) -> Report:
    """Measure each cluster in a process of its own, and fit a line to the driver's time."""
    report = Report("cluster")
    rounds = options.rounds or (3 if options.quick else 20)
    points = []
    for raylets, actors in ({1: (2,)} if options.quick else FULL).items():
        say(f"{raylets} raylet(s) with {', '.join(map(str, actors))} light actors")
        points += _in_a_process(raylets, actors, rounds)
    report.facts["rounds"] = points
    report.facts["clients"], report.facts["model bytes"] = CLIENTS, 4 * SIZE
    if options.quick:
        return report
    here = {point["actors"]: point for point in points if point["raylets"] == 4}
    for name, target in TARGETS.items():
        key = f"{name} s"
        ratio = here[32][key] / here[2][key]
        report.checks.append(Check(f"{name}: 32 actors over 2, 4 raylets", ratio, target))
    each, fixed = np.polyfit(
        [point["actors"] for point in points], [point["driver CPU s"] for point in points], 1
    )
    report.facts["driver CPU by arithmetic"] = {
        "s per actor and round": float(each),
        "s per round": float(fixed),
        **{f"s at {n} actors": float(fixed + n * each) for n in (100, 300, 1000)},
        "actors that fill a core at one round a second": float((1 - fixed) / each),
    }
    return report


def _in_a_process(raylets: int, actors: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    asked = json.dumps([raylets, actors, rounds])
    line = [sys.executable, "-m", "benchmarks.cluster", asked]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=900)
    if done.returncode:
        raise SideFailed(f"{raylets} raylets: {done.stderr[-2000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


# ---- in that process -------------------------------------------------------------------------


class NoWorld:
    """Clients without images."""

    def open(self) -> Any:
        return self


def work(client: Any, memory: Any, arguments: Any) -> Any:
    """Use a core for a while, and answer with a model."""
    from raysim.protocols import Contribution

    until = time.process_time() + WORK_S
    while time.process_time() < until:
        pass
    own = arguments["models"][arguments["group"]]["w"]
    return memory, Contribution({"w": own + np.float32(client.id)}, 1.0)


def measure(raylets: int, actors: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return seconds and bytes per round for each number of actors."""
    import ray  # noqa: TID251
    from ray.cluster_utils import Cluster  # noqa: TID251

    head = {"include_dashboard": False, "num_cpus": max(actors)}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(raylets - 1):
        cluster.add_node(num_cpus=max(actors))
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    ray.cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    return [{"raylets": raylets, "actors": n, **_measured(n, rounds)} for n in actors]


def _measured(actors: int, rounds: int) -> dict[str, Any]:
    import ray  # noqa: TID251

    from raysim.protocols import ClientRecord, OwnModels
    from raysim.runtime.ray.federation import RayFederation
    from raysim.settings import RuntimeSettings

    sent: list[int] = []

    class Counting(RayFederation):
        def _combine(self, groups: Any, sums: Any) -> Any:
            answers = super()._combine(groups, sums)
            refs = [ref for own in sums.values() for ref in own]
            found = ray.experimental.get_object_locations(refs)
            sent.append(sum(found[ref]["object_size"] or 0 for ref in refs))
            return answers

    records = [ClientRecord(k, np.arange(5), np.zeros(5, int)) for k in range(CLIENTS)]
    runtime = RuntimeSettings(kind="ray", actors=actors, start_timeout_s=300.0)
    federation = Counting(records, NoWorld(), runtime, name="bench")  # type: ignore[arg-type]
    groups = {k: k % GROUPS for k in range(CLIENTS)}
    models = {g: federation.put({"w": np.zeros(SIZE, np.float32)}) for g in range(GROUPS)}
    wall, cpu = [], []
    for _ in range(rounds + 2):  # two to warm up
        began, used = time.perf_counter(), _cpu_s()
        reduced = federation.reduce(work, groups=groups, models=OwnModels(models, groups))
        models = {g: result.mean for g, result in reduced.groups.items()}
        wall.append(time.perf_counter() - began)
        cpu.append(_cpu_s() - used)
    servers = sum(row["role"] == "server" for row in federation.describe())
    federation.close()
    return {
        "driver CPU s": median(cpu[2:]),
        "wall s": median(wall[2:]),
        "bytes to servers": median(sent[2:]),
        "servers": servers,
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(measure(*json.loads(sys.argv[1]))))

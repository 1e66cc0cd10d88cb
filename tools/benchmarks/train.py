"""``bench train``: rounds of FedAvg on two Ray actors beside the plain PyTorch loop."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.digits import digits_file
from benchmarks.memory import TreeMemory, tree_cpu_s, tree_pss
from benchmarks.options import Options
from benchmarks.report import Check, Report, compared, say
from benchmarks.sides import Side, python_side, side
from benchmarks.workloads import (
    QUICK_CLIENTS,
    WORKLOADS,
    Workload,
    data_bytes,
    has_order,
    quick,
)

WEIGHTS_DIFFER_BY = 1e-4
CPU_MS_PER_CLIENT = 0.05
GROWTH_WITH_K = 1.3
MEMORY_FACTOR = 1.25
STEADY = 0.01
"""Growth from round 100 to 600 below this share is allocator noise."""
GROWTH_ROUNDS = (100, 600)
THREADS = (1, 2)
NUM_TRIPS = 200


def run(options: Options) -> Report:
    """Measure the chosen workloads and everything the issue asks of training."""
    report = Report("train")
    chosen = [w for w in WORKLOADS if options.wants(w.name)]
    workloads = [quick(w) if options.quick else w for w in chosen]
    say("bare Ray: two torch actors, empty calls")
    trips, bare_bytes = bare_ray(options)
    _prepare(workloads)
    for workload in workloads:
        _measure(workload, options, report)
    trips += bare_ray(options)[0] if not options.quick else []
    report.facts["bare Ray round trip"] = f"{median(trips) * 1e3:.2f} ms"
    report.facts["bare Ray memory"] = f"{bare_bytes / 1e6:,.0f} MB"
    _check_ratios(workloads, report, median(trips))
    if options.wants("cost"):
        _cost_against_clients(options, report, bare_bytes)
    if options.long:
        _growth(options, report)
    if options.peers:
        report.facts["peers"] = peers()
    return report


def bare_ray(options: Options) -> tuple[list[float], int]:
    """Return seconds of empty round trips on two torch actors, and the memory of their tree."""
    script = Path(__file__).with_name("bare_ray.py")
    with side(str(script), digits_file(options.folder)) as bare, TreeMemory(bare.pid) as memory:
        bare.hear()  # the first round
        bare.ask(round_trips=20)
        trips = bare.ask(round_trips=20 if options.quick else NUM_TRIPS)["seconds"]
        memory.sample()
    return trips, memory.peak


def peers() -> dict[str, str]:
    """Return which of the other simulators are here."""
    names = {"flower": "flwr", "pfl": "pfl"}
    there = {peer: importlib.util.find_spec(module) for peer, module in names.items()}
    return {
        peer: "installed, but there is no adapter to measure it" if found else "not installed"
        for peer, found in there.items()
    }


def _prepare(workloads: Sequence[Workload]) -> None:
    """Make the data of all in a process of its own, whose memory is not measured."""
    with python_side("train_sides", kind="raysim") as maker:
        for workload in workloads:
            maker.ask(do="prepare", workload=asdict(workload))


# ---- one workload --------------------------------------------------------------------------


def _measure(workload: Workload, options: Options, report: Report) -> None:
    """Run both sides in turn and add a row, the weights check and what else is known."""
    rounds = options.rounds or workload.rounds
    say(f"{workload.name}: {_describe(workload)}, {rounds} rounds, {options.repeats} times")
    with python_side("train_sides", kind="plain", workload=asdict(workload)) as plain:
        threads = _worth_trying(plain, options)
        duel = _Duel(workload, options, plain, threads)
        with python_side("train_sides", kind="raysim") as ours, TreeMemory(ours.pid) as memory:
            runs = [duel.fight(ours, "ray", rounds) for _ in range(options.repeats)]
        with python_side("train_sides", kind="raysim") as ours:
            local = duel.fight(ours, "local", min(rounds, max(4, workload.block + 2)))
    best = sorted({r["threads"] for r in runs})
    note = f"reference on {' or '.join(map(str, best))} thread(s)"
    row, _ = compared(
        workload.name,
        [r["seconds"] for r in runs],
        [r["plain"] for r in runs],
        memory_bytes=memory.peak,
        note=f"{note}; {_describe(workload)}",
    )
    report.rows.append(row)
    say(f"{workload.name}: ratio {row.ratio:.3f} to the plain loop")
    in_process = median(local["seconds"]) / median(local["plain"])
    with_record = median(median(r["wall"]) / median(r["plain"]) for r in runs)
    cpu_ms = median(c for r in runs for c in r["cpu"]) * 1e3 / workload.per_round
    report.facts[f"{workload.name}, more"] = {
        "in-process ratio": in_process,
        "ratio with record and fsync": with_record,
        "driver CPU ms per client": cpu_ms,
        "CPU ms per round": _median_ms([r["tree_cpu"] for r in runs]),
        "of the reference": _median_ms([r["plain_cpu"] for r in runs]),
    }
    _check_weights(workload, [*runs, local], report)
    if workload.name.startswith("C"):
        name = f"{workload.name}: driver CPU"
        report.checks.append(Check(name, cpu_ms, CPU_MS_PER_CLIENT, "ms per client and round"))


class _Duel:
    """Runs of raysim and the plain loop that take turns every ``block`` rounds."""

    def __init__(
        self, workload: Workload, options: Options, plain: Side, threads: tuple[int, ...]
    ) -> None:
        self._workload, self._options = workload, options
        self._plain, self._threads = plain, threads
        self._count = itertools.count()
        self._plain_cpu = 0.0

    def fight(self, ours: Side, runtime: str, rounds: int) -> dict[str, Any]:
        """Return both sides' times per round, first and last left out, and the difference.

        The plain loop runs every round at each number of threads, and the better one counts.
        """
        name = self._workload.name.replace(" ", "-")
        folder = self._options.folder / f"{name}-{runtime}-{next(self._count)}"
        block = self._workload.block
        turns = list(range(block, rounds, block))
        our_weights, their_weights = (f"{folder}-{who}.npy" for who in ("ours", "theirs"))
        self._plain.ask(do="reset")
        theirs: dict[int, list[float]] = {t: [] for t in self._threads}
        cpu: list[float] = []
        done = 0
        self._plain_cpu = 0.0
        answer = ours.ask(
            do="run",
            workload=asdict(self._workload),
            rounds=rounds,
            runtime=runtime,
            output=str(folder),
            turns=turns,
            weights=our_weights,
        )
        while "turn" in answer:
            cpu.append(tree_cpu_s(ours.pid))
            done = self._play(done, answer["turn"], theirs)
            cpu.append(tree_cpu_s(ours.pid))  # Ray is not quite idle during the other's turn
            answer = ours.ask(go=True)
        self._play(done, rounds, theirs)
        self._plain.ask(do="weights", path=their_weights)
        times = {name: answer[name][1:-1] for name in ("seconds", "wall", "cpu")}
        difference = np.abs(np.load(our_weights) - np.load(their_weights)).max()
        tree_cpu = sum(cpu[2::2]) - sum(cpu[1:-1:2])  # from each go to the next turn
        best = min(self._threads, key=lambda t: median(theirs[t][1:-1]))
        return {
            **times,
            "plain": theirs[best][1:-1],
            "threads": best,
            "difference": float(difference),
            "tree_cpu": tree_cpu / (turns[-1] - turns[0]) if len(turns) > 1 else None,
            "plain_cpu": self._plain_cpu / rounds,
        }

    def _play(self, first: int, end: int, theirs: dict[int, list[float]]) -> int:
        """Have the plain loop run rounds ``first`` to ``end - 1`` and keep its seconds."""
        for threads in self._threads:
            message = {"first": first, "count": end - first, "threads": threads}
            keep = threads == self._threads[-1]  # the others start from the same weights
            answer = self._plain.ask(do="rounds", keep=keep, **message)
            theirs[threads] += answer["seconds"]
        self._plain_cpu += answer["cpu"]  # of the last, one thread
        return end


def _worth_trying(plain: Side, options: Options) -> tuple[int, ...]:
    """Return the numbers of torch threads at which the plain loop may be fastest here."""
    probe = {"do": "rounds", "first": 0, "count": 1, "at_most": 100, "keep": False}
    plain.ask(**probe, threads=1)  # the first call loads what torch loads late
    times: dict[int, list[float]] = {t: [] for t in THREADS}
    for _ in range(1 if options.quick else 3):
        for threads in THREADS:
            times[threads] += plain.ask(**probe, threads=threads)["seconds"]
    one, *more = THREADS
    # By the fastest call, since on a busy machine two threads may wait for each other; the run
    # itself then measures both.
    return (*[t for t in more if min(times[t]) < 0.95 * min(times[one])], one)


def _median_ms(seconds: list[float | None]) -> float | str:
    known = [s for s in seconds if s is not None]
    return median(known) * 1e3 if known else "not measured"


def _describe(workload: Workload) -> str:
    return (
        f"K={workload.clients}, {workload.samples} samples each, {workload.per_round} per round, "
        f"{workload.model['name']}"
    )


# ---- checks --------------------------------------------------------------------------------


def _check_weights(workload: Workload, runs: list[dict[str, Any]], report: Report) -> None:
    worst = max(r["difference"] for r in runs)
    name = f"{workload.name}: weights"
    if has_order():
        report.checks.append(Check(name, worst, WEIGHTS_DIFFER_BY, "max abs", timed=False))
    else:
        report.facts[name] = f"differ by {worst:.2g}: this raysim has no train.order and shuffles"


def _check_ratios(workloads: list[Workload], report: Report, trip_s: float) -> None:
    for workload, row in zip(workloads, report.rows, strict=True):
        target, note = workload.target, f"stretch {1.3 * workload.limit:.3f}"
        if workload.name == "A logistic":
            with_trip = 1.3 * workload.limit + trip_s / row.reference_s
            target = max(target, with_trip)
            note += f"; 1.3x the limit plus a round trip is {with_trip:.3f}"
        report.checks.append(Check(f"{workload.name}: ratio", row.ratio, target, note=note))


def _cost_against_clients(options: Options, report: Report, bare_bytes: int) -> None:
    """Add time per client at three K, and memory at the largest, on Ray without the plain loop."""
    sizes = tuple(QUICK_CLIENTS.values() if options.quick else QUICK_CLIENTS)
    like = quick(WORKLOADS[-1]) if options.quick else WORKLOADS[-1]
    plans = [replace(like, clients=k, per_round=k) for k in sizes]
    say(f"cost against K: {', '.join(map(str, sizes))} clients of {like.samples} samples")
    per_client: dict[int, list[float]] = {k: [] for k in sizes}
    _prepare(plans)
    with python_side("train_sides", kind="raysim") as ours, TreeMemory(ours.pid) as memory:
        for repeat, plan in itertools.product(range(options.repeats), plans):
            answer = ours.ask(
                do="run",
                workload=asdict(plan),
                rounds=4 if plan.clients > 1000 or options.quick else 10,
                runtime="ray",
                output=str(options.folder / f"cost-{plan.clients}-{repeat}"),
                turns=[],
            )
            per_client[plan.clients].append(median(answer["seconds"][1:-1]) / plan.clients)
    medians = {str(k): median(times) * 1e3 for k, times in per_client.items()}
    report.facts["ms per client by K"] = medians
    ratios = [b / a for a, b in zip(per_client[sizes[0]], per_client[sizes[-1]], strict=True)]
    name = f"time per client, K={sizes[-1]} over {sizes[0]}"
    report.checks.append(Check(name, median(ratios), GROWTH_WITH_K))
    target = MEMORY_FACTOR * (data_bytes(plans[-1]) + bare_bytes)
    name = f"memory at K={sizes[-1]}"
    report.checks.append(Check(name, memory.peak / 1e6, target / 1e6, "MB"))


def _growth(options: Options, report: Report) -> None:
    """Add the memory of workload A at rounds 100 and 600."""
    turns = (3, 6) if options.quick else GROWTH_ROUNDS
    workload = quick(WORKLOADS[0]) if options.quick else WORKLOADS[0]
    say(f"memory growth: {workload.name}, rounds {turns[0]} to {turns[1]}")
    found = []
    with python_side("train_sides", kind="raysim") as ours:
        ours.ask(do="prepare", workload=asdict(workload))
        answer = ours.ask(
            do="run",
            workload=asdict(workload),
            rounds=turns[1] + 1,
            runtime="ray",
            output=str(options.folder / "growth"),
            turns=list(turns),
        )
        while "turn" in answer:
            found.append(tree_pss(ours.pid))
            answer = ours.ask(go=True)
    report.facts["memory by round"] = {
        str(turn): f"{pss / 1e6:,.1f} MB" for turn, pss in zip(turns, found, strict=True)
    }
    growth = found[1] / found[0] - 1
    report.checks.append(Check(f"memory growth, rounds {turns[0]} to {turns[1]}", growth, STEADY))

"""``bench startup``: ``raysim --help`` and the first round beside the least that could be."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.digits import digits_file
from benchmarks.options import Options
from benchmarks.report import Check, Report, compared, say
from benchmarks.sides import environment, seconds_until

HELP_S = 0.4
FIRST_ROUND = 1.3
IN_PROCESS = FIRST_ROUND / 2
QUICKSTART = ("run", "quickstart", "train.rounds=1")
RAYSIM = (sys.executable, "-m", "raysim")
PASSES = (sys.executable, "-c", "pass")


def run(options: Options) -> Report:
    """Measure both; caches of data and features are warm, as from the second run on."""
    report = Report("startup")
    if options.wants("help"):
        _help(options, report)
    if options.wants("first round"):
        _first_round(options, report)
    return report


def _help(options: Options, report: Report) -> None:
    count = 2 if options.quick else 10
    say(f"raysim --help and python -c pass, {count} times")
    ours, theirs = [], []
    for _ in range(count):
        ours.append(seconds_of((*RAYSIM, "--help")))
        theirs.append(seconds_of(PASSES))
    row, _ = compared("raysim --help", [ours], [theirs], note="reference: python -c pass")
    report.rows.append(row)
    more = median(ours) - median(theirs)
    report.checks.append(Check("raysim --help: more than python", more, HELP_S, "s"))


def _first_round(options: Options, report: Report) -> None:
    say(f"first round on digits: bare Ray, raysim on Ray, in-process; {options.repeats} times")
    script = str(Path(__file__).with_name("bare_ray.py"))
    bare = (sys.executable, script, digits_file(options.folder))
    runtimes = {
        "on Ray": ("runtime.kind=ray", "runtime.actors=2"),
        "in-process": ("runtime.kind=local",),
    }
    for name in runtimes if not options.quick else ["in-process"]:
        _first(f"warm {name}", runtimes[name], options)  # files of both are in memory then
    if not options.quick:
        seconds_until(bare, "first_round")
    theirs: list[list[float]] = []
    ours: dict[str, list[list[float]]] = {name: [] for name in runtimes}
    memory = dict.fromkeys([*runtimes, "bare"], 0)
    for repeat in range(options.repeats):
        seconds, peak = seconds_until(bare, "first_round")
        theirs.append([seconds])
        memory["bare"] = max(memory["bare"], peak)
        for name, overrides in runtimes.items():
            seconds, peak = _first(f"{name[:2]}{repeat}", overrides, options)
            ours[name].append([seconds])
            memory[name] = max(memory[name], peak)
    for name, target in (("on Ray", FIRST_ROUND), ("in-process", IN_PROCESS)):
        row, ratio = compared(
            f"first round {name}",
            ours[name],
            theirs,
            memory_bytes=memory[name],
            reference_memory_bytes=memory["bare"],
            note="reference: bare Ray with two torch actors",
        )
        report.rows.append(row)
        report.checks.append(Check(f"first round {name}: over bare Ray", ratio, target))


def _first(name: str, overrides: tuple[str, ...], options: Options) -> tuple[float, int]:
    """Return seconds from the start of ``raysim run`` to its first training round, and memory."""
    output = f"output={options.folder / name}"
    return seconds_until((*RAYSIM, *QUICKSTART, *overrides, output), "train 1/")


def seconds_of(command: tuple[str, ...]) -> float:
    """Return the wall time of a command that must succeed."""
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment())
    return time.perf_counter() - started

"""``bench e2e``: the quickstart from the command line, on Ray and in-process, per phase."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.options import Options
from benchmarks.report import Check, Report, compared, say
from benchmarks.sides import seconds_until

RUNTIMES = {"ray": ("runtime.kind=ray", "runtime.actors=2"), "local": ("runtime.kind=local",)}
MARKER = '"run_dir"'


def run(options: Options) -> Report:
    """Measure whole runs; the in-process one is the reference of the one on Ray."""
    report = Report("e2e")
    rounds = options.rounds or (3 if options.quick else 20)
    say(f"quickstart with {rounds} rounds, on Ray and in-process, {options.repeats} times")
    _run("local", options, name="warm", rounds=1)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in RUNTIMES}
    for repeat in range(options.repeats):
        for kind in RUNTIMES:
            found[kind].append(_run(kind, options, name=f"{kind}{repeat}", rounds=rounds))
    for phase in found["local"][0]["phases"]:
        ours, theirs = (
            [[one["phases"][phase]] for one in found[kind]] for kind in ("ray", "local")
        )
        whole = phase == "whole command"
        memory = {kind: max(one["memory"] for one in found[kind]) for kind in RUNTIMES}
        row, _ = compared(
            phase,
            ours,
            theirs,
            memory_bytes=memory["ray"] if whole else None,
            reference_memory_bytes=memory["local"] if whole else None,
            note="raysim: on two actors; reference: in-process" if whole else "",
        )
        report.rows.append(row)
    same = {json.dumps(one["digest"], sort_keys=True) for runs in found.values() for one in runs}
    report.checks.append(Check("different results", len(same), 1, "digests", timed=False))
    report.facts["accuracy"] = median(one["accuracy"] for one in found["ray"])
    return report


def _run(kind: str, options: Options, *, name: str, rounds: int) -> dict[str, Any]:
    """Run the command once; return seconds by phase, memory, accuracy and digests."""
    folder = options.folder / name
    command = (sys.executable, "-m", "raysim", "run", "quickstart", f"train.rounds={rounds}")
    started = time.perf_counter()
    _, memory = seconds_until(
        (*command, *RUNTIMES[kind], f"output={folder}", "--json", "--quiet"), MARKER
    )
    whole = time.perf_counter() - started
    result = json.loads((folder / "result.json").read_text())
    return {
        "phases": {"whole command": whole, **_phases(folder, result)},
        "memory": memory,
        "accuracy": result["accuracy"]["mean"],
        "digest": result["digest"],
    }


def _phases(folder: Path, result: dict[str, Any]) -> dict[str, float]:
    """Return seconds of the set-up and of every stage."""
    phases: dict[str, float] = defaultdict(float)
    phases["setup"] = result["seconds"]["setup"]
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        phases[f"stage {record['stage']}"] += record["seconds"]
    return dict(phases)

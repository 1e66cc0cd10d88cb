"""The command line of ``tools/bench``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.options import Options
from benchmarks.report import Report, machine, print_json, print_report, say
from benchmarks.sides import SideFailed

SUBCOMMANDS = {
    "train": "rounds of FedAvg on two Ray actors beside a plain PyTorch loop",
    "similarity": "the similarity exchange beside the machine's matrix product",
    "hog": "HoG features beside scikit-image",
    "startup": "the time to the first round beside a bare Ray script",
    "cluster": "what a round costs the coordinator, against actors and nodes",
    "e2e": "the quickstart per phase, on Ray and in-process",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; 1 when raysim's results differ from the reference's."""
    asked = parser().parse_args(arguments)
    cache = Path(os.environ.get("RAYSIM_CACHE") or "~/.cache/raysim").expanduser() / "bench"
    os.environ["RAYSIM_CACHE"] = str(cache)
    say(f"data of the benchmark is kept in {cache}")
    before = machine()
    with tempfile.TemporaryDirectory(prefix="raysim-bench-") as folder:
        options = Options(
            folder=Path(folder),
            repeats=asked.repeats or (1 if asked.quick else 3),
            rounds=asked.rounds,
            quick=asked.quick,
            peers=asked.peers,
            long=asked.long,
            large=asked.large,
            only=tuple(asked.only.split(",")) if asked.only else (),
        )
        try:
            report: Report = importlib.import_module(f"benchmarks.{asked.subcommand}").run(options)
        except SideFailed as wrong:
            print(f"bench: {wrong}", file=sys.stderr)
            return 1
    print_report(report)
    if asked.json:
        after = {"load after": os.getloadavg()[0]}
        print_json({**report.as_dict(), "machine": {**before, **after}, "quick": asked.quick})
    if not report.is_sound:
        say("raysim's results differ from the reference's: see the checks above")
    return 0 if report.is_sound else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    root = argparse.ArgumentParser(
        prog="tools/bench",
        description="Measure raysim and its references in turn, in one run on this machine. "
        "Ratios are medians; a missed target is shown, and only a wrong result fails.",
    )
    commands = root.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
    for name, text in SUBCOMMANDS.items():
        one = commands.add_parser(name, help=text, description=text)
        one.add_argument("--repeats", type=_positive, help="repeats of each pair (default 3)")
        one.add_argument("--rounds", type=_rounds, help="rounds per run (train)")
        one.add_argument("--json", action="store_true", help="one JSON object as the last line")
        one.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
        one.add_argument("--only", help="parts to measure, e.g. A,C or cost (train)")
        one.add_argument("--long", action="store_true", help="memory over 600 rounds too (train)")
        one.add_argument("--large", action="store_true", help="K=10,000 too (similarity)")
        one.add_argument("--peers", action="store_true", help="other simulators, where installed")
    return root


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _rounds(text: str) -> int:
    value = int(text)
    if value < 3:
        raise argparse.ArgumentTypeError(f"must be at least 3 (first and last drop), got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())

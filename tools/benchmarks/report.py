"""What a benchmark says: measured rows, checks against the targets, a table and a JSON object."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

PACKAGES = ("numpy", "scipy", "torch", "ray", "scikit-image", "raysim")


@dataclass(frozen=True)
class Row:
    """One comparison; times are medians in seconds."""

    name: str
    raysim_s: float
    reference_s: float
    ratio: float
    """Median over repeats of raysim over reference, each pair measured in turn."""
    ratios: tuple[float, ...]
    memory_bytes: int | None = None
    """Peak PSS of raysim's process tree."""
    reference_memory_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Check:
    """A measured number beside the number it is held against."""

    name: str
    value: float
    target: float
    unit: str = ""
    at_least: bool = False
    timed: bool = True
    """Whether noise of the machine can decide it; one that is not timed fails the command."""
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.target if self.at_least else self.value <= self.target


@dataclass
class Report:
    """Everything one subcommand measured."""

    benchmark: str
    rows: list[Row] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Other measured numbers, by name."""

    @property
    def is_sound(self) -> bool:
        """Whether every check that does not depend on time holds: same weights, same values."""
        return all(check.met for check in self.checks if not check.timed)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "benchmark": self.benchmark,
            "rows": [asdict(row) for row in self.rows],
            "checks": [{**asdict(check), "met": check.met} for check in self.checks],
            "facts": self.facts,
            "missed": [check.name for check in self.checks if not check.met],
        }


def compared(
    name: str, ours: list[list[float]], theirs: list[list[float]], **rest: Any
) -> tuple[Row, float]:
    """Return the row of ``repeats`` lists of seconds, and its ratio."""
    ratios = tuple(median(a) / median(b) for a, b in zip(ours, theirs, strict=True))
    row = Row(
        name,
        raysim_s=median(s for one in ours for s in one),
        reference_s=median(s for one in theirs for s in one),
        ratio=median(ratios),
        ratios=ratios,
        **rest,
    )
    return row, row.ratio


def machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "packages": installed,
    }


def say(text: str) -> None:
    """Tell the person what is being measured."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def print_report(report: Report) -> None:
    """Print rows, facts and checks for a person."""
    print(f"== {report.benchmark} ==")
    if report.rows:
        print(f"{'':34}{'raysim':>11}{'reference':>11}{'ratio':>8}  {'range':<13}  memory")
    for row in report.rows:
        spread = f"{min(row.ratios):.2f}..{max(row.ratios):.2f}"
        memory = f"{row.memory_bytes / 1e6:,.0f} MB" if row.memory_bytes else "-"
        if row.reference_memory_bytes:
            memory += f" (reference {row.reference_memory_bytes / 1e6:,.0f} MB)"
        times = f"{duration(row.raysim_s):>11}{duration(row.reference_s):>11}"
        print(f"{row.name:<34}{times}{row.ratio:>8.3f}  {spread:<13}  {memory}")
        if row.note:
            print(f"{'':4}{row.note}")
    for name, value in report.facts.items():
        print(f"{name:<34}  {_plain(value)}")
    for check in report.checks:
        sign = ">=" if check.at_least else "<="
        verdict = "ok    " if check.met else "MISSED"
        unit = f" {check.unit}" if check.unit else ""
        numbers = f"{check.value:.4g} {sign} {check.target:.4g}{unit}"
        print(f"{verdict} {check.name:<40} {numbers}{'  ' + check.note if check.note else ''}")


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(value), flush=True)


def duration(seconds: float) -> str:
    """Return seconds in the unit a person would use."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor()

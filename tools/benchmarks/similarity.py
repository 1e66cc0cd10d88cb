"""``bench similarity``: the exchange of spectra (FB-NLL Eq. 3-6) beside the machine's GEMM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.memory import TreeMemory
from benchmarks.options import Options
from benchmarks.report import Check, Report, compared, say
from benchmarks.sides import Side, python_side

RATIO, LARGE_RATIO = 1.5, 1.7
LARGE_BYTES = 4e9
VALUES_DIFFER_BY = 1e-5
PAIRS = 200


@dataclass(frozen=True)
class Size:
    """K clients, d numbers per feature row, q directions."""

    clients: int = 2000
    dim: int = 144
    rank: int = 10
    samples: int = 200
    gemm: int = 4096

    @property
    def flops(self) -> float:
        """Floating-point operations of all K^2 products Sigma_k V_j: 2 K^2 q d^2."""
        return 2.0 * self.clients**2 * self.rank * self.dim**2

    def __str__(self) -> str:
        """Return the numbers the issue names."""
        return f"K={self.clients} d={self.dim} q={self.rank}"


def run(options: Options) -> Report:
    """Measure the exchange, and with --large the whole grouping of K=10,000."""
    report = Report("similarity")
    size = Size(clients=60, gemm=512) if options.quick else Size()
    if options.wants("exchange"):
        _exchange(size, options, report)
    if options.large:
        large = Size(clients=90, gemm=512) if options.quick else Size(clients=10_000)
        _end_to_end(large, options, report)
    return report


def _exchange(size: Size, options: Options, report: Report) -> None:
    say(f"exchange, {size}: two actors, in-process, matrix product; {options.repeats} times")
    kinds = ("ray", "local")
    ours: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    theirs: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    memory, digests, one_thread = {}, {}, []
    for _ in range(options.repeats):
        for kind in kinds:
            before = gemm_peak(size)
            with _side(kind, size) as (side, watch):
                side.ask(do="spectra")
                answer = side.ask(do="exchange")
                worst = side.ask(do="check", pairs=PAIRS)["difference"]
            peak = (before + gemm_peak(size)) / 2
            ours[kind].append([answer["seconds"]])
            theirs[kind].append([size.flops / peak])
            memory[kind], digests[kind] = watch.peak, answer["digest"]
        one_thread.append(answer["seconds"] * gemm_peak(size, threads=1) / size.flops)
    for kind, name in zip(kinds, ("two actors", "in-process"), strict=True):
        row, _ = compared(f"{size}, {name}", ours[kind], theirs[kind], memory_bytes=memory[kind])
        report.rows.append(row)
    report.facts["in-process over one-thread GEMM"] = min(one_thread)
    report.facts["same R on Ray and in-process"] = digests["ray"] == digests["local"]
    report.facts["GEMM peak, two threads"] = f"{peak / 1e9:.0f} GFLOP/s"
    on_ray = report.rows[-2].ratio
    report.checks += [
        Check(f"{size}, two actors: over GEMM", on_ray, RATIO),
        Check(f"{size}: R against float64 loop", worst, VALUES_DIFFER_BY, "max abs", timed=False),
    ]


def _end_to_end(size: Size, options: Options, report: Report) -> None:
    """Add exchange, R and clustering from given spectra, against one GEMM and SciPy's linkage."""
    say(f"end to end, {size}")
    path = str(options.folder / "similarity.npy")
    before = gemm_peak(size)
    with _side("ray", size) as (side, watch):
        side.ask(do="spectra")
        exchange = side.ask(do="exchange")["seconds"]
        clustering = side.ask(do="cluster")
        peak_bytes = watch.sample() and watch.peak
        worst = side.ask(do="check", pairs=PAIRS)["difference"]
        side.ask(do="save", path=path)
    peak = (before + gemm_peak(size)) / 2
    with python_side("similarity_sides", kind="reference") as other:
        linkage = other.ask(do="linkage", path=path, method="average")["seconds"]
    row, ratio = compared(
        f"{size}, end to end",
        [[exchange + clustering["seconds"]]],
        [[size.flops / peak + linkage]],
        memory_bytes=peak_bytes,
    )
    report.rows.append(row)
    report.facts[f"K={size.clients} parts"] = {
        "exchange s": exchange,
        "clustering s": clustering["seconds"],
        "one GEMM s": size.flops / peak,
        "scipy linkage s": linkage,
        "groups right": clustering["right"],
    }
    name = f"{size}, end to end"
    report.checks += [
        Check(f"{name}: over GEMM and linkage", ratio, LARGE_RATIO),
        Check(f"{name}: memory", peak_bytes / 1e9, LARGE_BYTES / 1e9, "GB"),
        Check(f"{name}: R", worst, VALUES_DIFFER_BY, "max abs", timed=False),
    ]


def gemm_peak(size: Size, threads: int = 2) -> float:
    """Return the machine's float32 FLOP/s now, in a process of its own."""
    with python_side("similarity_sides", kind="reference") as other:
        peak: float = other.ask(do="gemm", size=size.gemm, threads=threads)["peak"]
    return peak


@contextmanager
def _side(runtime: str, size: Size) -> Iterator[tuple[Side, TreeMemory]]:
    exchange: dict[str, Any] = {
        "runtime": runtime,
        "clients": size.clients,
        "samples": size.samples,
        "dim": size.dim,
        "rank": size.rank,
    }
    with (
        python_side("similarity_sides", kind="exchange", exchange=exchange) as started,
        TreeMemory(started.pid) as memory,
    ):
        yield started, memory

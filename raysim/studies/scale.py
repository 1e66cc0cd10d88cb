"""The large-K experiment of ``raysim scale``: FB-NLL end to end on synthetic clients, measured.

Every number of clients is one ordinary run in ``K<k>/``; what it cost goes to ``scale.jsonl``.
A size that was interrupted is measured anew, since a resumed run has no time of its own.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout

from raysim.config import RunConfig, load_config
from raysim.errors import ConfigError, EnvironmentNotFit, Interrupted, OutputError
from raysim.settings import check, settings
from raysim.storage.files import json_text, write_whole

PHASES = ("setup", "grouping", "correction", "round", "total")
PICTURES = (".png", ".pdf", ".svg")
CLASSES_PER_GROUP = 2
CLEAN_PER_CLASS = 40
LARGEST_SUBSPACE = 5
SAMPLE_EVERY_S = 0.5
LOCK = ".lock"
"""Never removed: a process that opened it before would hold a lock on a file nobody else finds."""
Watch = Callable[[int, Any], AbstractContextManager[Any]]
"""(number of clients, experiment) -> a context that yields the run's listener."""


@settings
class ScaleSettings:
    """Sizes to measure, and what every client looks like."""

    clients: tuple[int, ...]
    dim: int = 64
    samples: int = 60
    groups: int = 5
    rounds: int = 3
    landmarks: int | None = None
    actors: int | Literal["auto"] = "auto"
    address: str | None = None
    local: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("samples", 4), ("groups", 2), ("rounds", 1), ("seed", 0)):
            value, rule = getattr(self, name), f"must be at least {least}"
            check(value >= least, f"--{name}", rule, got=value, do="raise it")
        self._check_clients()
        check(
            self.dim >= CLASSES_PER_GROUP * self.groups,
            "--dim",
            f"must be at least {CLASSES_PER_GROUP * self.groups}, one direction per class",
            got=self.dim,
            do="raise it or lower --groups",
        )
        check(
            self.landmarks is None or self.landmarks >= self.groups,
            "--landmarks",
            f"must be at least --groups ({self.groups}), one per group",
            got=self.landmarks,
            do="try ten per group",
        )
        alone = self.address is None and self.actors == "auto"
        given = "--actors or --address beside it"
        check(alone or not self.local, "--local", "has no actors", got=given, do="drop one of them")

    def _check_clients(self) -> None:
        name, counts = "--clients", self.clients
        check(len(counts) > 0, name, "must name a number", got=counts, do="try 100,1000")
        least, rule = min(counts), f"must be at least --groups ({self.groups})"
        check(least >= self.groups, name, rule, got=least, do="raise it or lower --groups")
        twice = [k for k in counts if counts.count(k) > 1]
        check(not twice, name, "must name a number once", got=list(counts), do="drop one of them")
        few = f"must be at most the smallest of --clients ({least}): an actor hosts a client"
        fits = self.actors == "auto" or self.actors <= least
        check(fits, "--actors", few, got=self.actors, do="lower it or leave it out")

    def config(self, count: int, folder: Path) -> RunConfig:
        """Return the config of the run with ``count`` clients.

        As many eigenvectors are compared as a task has directions, so that a pair costs the same
        for every K. Sizes up to ``landmarks`` are grouped exactly.
        """
        rank = min(LARGEST_SUBSPACE, self.dim // (CLASSES_PER_GROUP * self.groups))
        grouping = {
            "rank": min(CLASSES_PER_GROUP * rank, self.samples),
            "landmarks": self.landmarks if self.landmarks and self.landmarks < count else None,
        }
        kind = "local" if self.local else "ray"
        return load_config(
            {
                "name": "scale",
                "seed": self.seed,
                "data": self._data(count, rank),
                "model": "logistic",
                "train": {"rounds": self.rounds, "epochs": 1},
                "evaluate": {"every": self.rounds},
                "method": {"name": "fb_nll", "grouping": grouping},
                "runtime": {"kind": kind, "actors": self.actors, "address": self.address},
                "output": str(folder).replace("{", "{{").replace("}", "}}"),
            }
        )

    def _data(self, count: int, rank: int) -> dict[str, Any]:
        """Two classes per task, each near a subspace of its own; a quarter of the labels wrong."""
        classes = CLASSES_PER_GROUP * self.groups
        return {
            "dataset": {
                "name": "synthetic",
                "classes": classes,
                "dim": self.dim,
                "subspace_rank": rank,
                "per_class": -(-count * self.samples // classes) + CLEAN_PER_CLASS,
                "data_seed": self.seed,
            },
            "features": "pixels",
            "partition": {"kind": "tasks", "clients": count, "groups": self.groups},
            "noise": {"kind": "class_dependent", "rate": 0.25},
            "server": {"per_class": CLEAN_PER_CLASS},
        }


def parse_clients(text: str) -> tuple[int, ...]:
    """Return the numbers of a list like ``100,1000,10000``."""
    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal():
            raise ConfigError(
                f"--clients must be whole numbers with commas between them, got {part.strip()!r} "
                f"in {text!r}; write for example --clients 100,1000"
            )
        numbers.append(int(part))
    return tuple(numbers)


def parse_actors(text: str) -> int | Literal["auto"]:
    """Return "auto" or the number of actors."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--actors must be auto or at least 1, got {text!r}; correct it")
    return int(text)


def run_scale(how: ScaleSettings, out: Path, *, watch: Watch) -> dict[str, Any]:
    """Measure the sizes that ``out`` does not hold yet; return the rows of all of them."""
    home = out.resolve()  # actors may have another working directory
    configs = {count: how.config(count, home / f"K{count}") for count in sorted(how.clients)}
    for config in configs.values():
        dimensions = {"grouping": how.dim, "correction": how.dim}
        config.method.check(config, classes=CLASSES_PER_GROUP * how.groups, dimensions=dimensions)
    arguments = {**dataclasses.asdict(how), "clients": list(configs)}
    with _locked(out):
        rows = {row["clients"]: row for row in _opened(out, arguments)}
        missing = {count: config for count, config in configs.items() if count not in rows}
        start_s = _start(next(iter(missing.values()))) if missing else 0.0
        for count, config in missing.items():
            try:
                rows[count] = _measured(count, config, watch)
            except (Interrupted, KeyboardInterrupt) as stop:
                raise Interrupted(
                    f"stopped at {count} clients; {len(rows)} of {len(configs)} sizes are in "
                    f"{out}, the same command goes on with the others"
                ) from stop
            lines = "".join(f"{json_text(rows[k])}\n" for k in sorted(rows))
            write_whole(out / "scale.jsonl", lines.encode())
    return {
        "arguments": arguments,
        "out": str(out),
        "start_s": round(start_s, 3),
        "rows": [rows[count] for count in configs],
    }


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Make the folder this process's own for a while; refuse one that holds something else."""
    is_ours = (out / "scale.json").is_file()
    others = (file for file in out.iterdir() if file.name != LOCK) if out.is_dir() else ()
    if not is_ours and out.exists() and (not out.is_dir() or any(others)):
        raise OutputError(
            f"--out {out} exists and holds no scale run; choose an empty or new folder"
        )
    lock = FileLock(out / LOCK)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise OutputError(
            f"--out {out} is in use by another process; wait for it or choose another"
        ) from None
    except OSError as wrong:
        raise OutputError(f"--out {out} cannot be written ({wrong}); choose another") from wrong
    try:
        yield
    finally:
        lock.release()


def _opened(out: Path, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that are there; refuse those of other arguments."""
    head, file = out / "scale.json", out / "scale.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines:  # nothing measured yet: nothing to mix up
        write_whole(head, f"{json_text(arguments, indent=2)}\n".encode())
        return []
    before = json.loads(head.read_text(encoding="utf-8"))
    other = [k for k in arguments if before.get(k) != arguments[k]]
    if other:
        changes = ", ".join(f"{k} {before.get(k)} there and {arguments[k]} here" for k in other)
        raise OutputError(
            f"--out {out} holds a scale run with other arguments: {changes}; choose another --out"
        )
    return [json.loads(line) for line in lines]


def _start(config: RunConfig) -> float:
    """Pay once what every process pays, so that the smallest size does not; return the seconds."""
    from raysim.core.clustering import cluster
    from raysim.core.metrics import adjusted_rand

    started = time.perf_counter()
    adjusted_rand([0, 1], cluster(np.eye(2), 2))  # they import packages when first called
    importlib.import_module("raysim.experiment")
    if config.runtime.kind == "ray":
        from raysim.runtime.ray.connection import connect

        connect(config.runtime)
    return time.perf_counter() - started


def _measured(count: int, config: RunConfig, watch: Watch) -> dict[str, Any]:
    """Run one size and return its row."""
    from raysim.experiment import Experiment

    experiment = Experiment(config)
    with PeakMemory() as memory, watch(count, experiment) as listener:
        started = time.perf_counter()
        summary = experiment.run(force=True, listeners=[listener]).summary
        total = time.perf_counter() - started
    times: dict[str, list[float]] = {}
    for record in experiment.folder.records():
        times.setdefault(record.stage, []).append(record.seconds)
    seconds = {
        "setup": summary["seconds"]["setup"],
        "grouping": times["group"][0],
        "correction": times["correct"][0],
        "round": statistics.median(times["train"]),
        "total": round(total, 3),
    }
    actors = experiment.folder.read("environment.json")["actors"]
    return {
        "clients": count,
        "landmarks": config.method.grouping.landmarks,  # type: ignore[attr-defined]
        "actors": sum(row["role"] == "clients" for row in actors),
        "seconds": seconds,
        "ms_per_client": {phase: round(1e3 * s / count, 4) for phase, s in seconds.items()},
        "bytes_per_client": {d: round(n / count) for d, n in summary["bytes"].items()},
        "peak_bytes": memory.peak_bytes,
        "ari": summary["ari"],
        "noise_before": summary["labels"]["noise_before"],
        "noise_after": summary["labels"]["noise_after"],
        "accuracy": summary["accuracy"]["mean"],
        "run_dir": summary["run_dir"],
    }


def check_plot(path: Path) -> None:
    """Refuse a picture that could not be drawn after the runs."""
    if path.suffix not in PICTURES:
        raise ConfigError(
            f"--plot must end in {', '.join(PICTURES)}, got {str(path)!r}; write FILE.png"
        )
    if not path.parent.is_dir():
        raise OutputError(f"--plot {path}: there is no folder {path.parent}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentNotFit(
            "--plot needs matplotlib, which is not installed; pip install matplotlib, or leave "
            "--plot out and draw scale.jsonl yourself"
        )


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw seconds per phase and peak memory against the number of clients, on log axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    times, memory = figure.subplots(1, 2)
    counts = [row["clients"] for row in rows]
    for phase in PHASES:
        times.plot(counts, [row["seconds"][phase] for row in rows], marker="o", label=phase)
    times.set(xscale="log", yscale="log", xlabel="clients", ylabel="seconds")
    times.legend()
    for direction in ("up", "down"):
        sent = [row["bytes_per_client"][direction] / 1e6 for row in rows]
        memory.plot(counts, sent, marker="o", label=f"{direction} per client")
    if all(row["peak_bytes"] is not None for row in rows):
        peaks = [row["peak_bytes"] / 1e6 for row in rows]
        memory.plot(counts, peaks, marker="o", label="peak memory")
    memory.set(xscale="log", yscale="log", xlabel="clients", ylabel="MB")
    memory.legend()
    figure.savefig(path, dpi=150)


class PeakMemory:
    """Watches the memory of this process and of all below it (Ray's, unless it ran before).

    The proportional set size counts a page shared by n processes 1/n in each, so that the sum is
    right. It is sampled at most twice a second, so that short peaks may be missed. ``peak_bytes``
    stays None where the system does not tell (no /proc/<pid>/smaps_rollup).
    """

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root, self._done = root, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        self.peak_bytes: int | None = None

    def __enter__(self) -> PeakMemory:
        if (self._root / str(os.getpid()) / "smaps_rollup").exists():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take a last sample and stop."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        last, pause_s = False, SAMPLE_EVERY_S
        while not last:
            last = self._done.wait(pause_s)
            started = time.perf_counter()
            now = sum(self._pss_bytes(pid) for pid in self._tree())
            self.peak_bytes = max(self.peak_bytes or 0, now)
            # The kernel walks every page of every process: large ones are asked less often.
            pause_s = max(SAMPLE_EVERY_S, 30 * (time.perf_counter() - started))

    def _tree(self) -> list[int]:
        """Return this process and its descendants."""
        children: dict[int, list[int]] = {}
        for entry in self._root.iterdir():
            with suppress(OSError, IndexError, ValueError):  # no process, or it has just ended
                # "pid (name) state parent ...", and the name may hold spaces and brackets
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
        pids = [os.getpid()]
        for pid in pids:  # grows while it is walked
            pids += children.get(pid, [])
        return pids

    def _pss_bytes(self, pid: int) -> int:
        try:
            lines = (self._root / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            return 0
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))

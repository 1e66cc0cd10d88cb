"""What a person sees while a run goes on.

Live on a terminal, one plain line per round elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from raysim.runtime.coordinator import Event, Listener


@contextlib.contextmanager
def show_progress(experiment: Any, *, stream: TextIO, quiet: bool) -> Iterator[Listener]:
    """Yield the listener that fits the output: none, live, or plain lines."""
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty() and stream.isatty():
        with _live(experiment) as listener:
            yield listener
    else:
        yield _plain(experiment, stream)


def log_to_terminal() -> None:
    """Send warnings of raysim (a lost actor, a capped rank) to standard error."""
    logger = logging.getLogger("raysim")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setLevel(logging.WARNING)
        handler.setFormatter(logging.Formatter("raysim: %(message)s"))
        logger.addHandler(handler)
    logging.captureWarnings(True)


def round_line(event: Event) -> str:
    """Return the one line that says what a round did."""
    record = event.record or {}
    parts = [f"{event.stage} {event.round}/{event.rounds}", *_facts(record)]
    return "  ".join([*parts, f"{record.get('seconds', 0):.1f} s"])


def _facts(record: Mapping[str, Any]) -> list[str]:
    facts = []
    if "accuracy" in record:
        accuracy = record["accuracy"]
        facts.append(f"acc {100 * accuracy['mean']:.1f} ± {100 * accuracy['std']:.1f}")
    if record.get("loss") is not None:
        facts.append(f"loss {record['loss']:.3f}")
    if "ari" in record:
        facts.append(f"groups {len(set(record['groups']))}  ARI {record['ari']:.2f}")
    if "labels" in record:
        labels = record["labels"]
        before, after = 100 * labels["noise_before"], 100 * labels["noise_after"]
        facts.append(f"noise {before:.1f} % -> {after:.1f} %")
    if "bytes" in record:
        up = sum(record["bytes"]["up"].values())
        facts.append(f"up {up / 1e6:.2f} MB")
    return facts


def _plain(experiment: Any, stream: TextIO) -> Listener:
    def listen(event: Event) -> None:
        if event.kind == "start":
            for row in _actors(experiment):
                print(row, file=stream, flush=True)
            if event.round:
                print(
                    f"resumed after {event.round} of {event.rounds} rounds", file=stream, flush=True
                )
        if event.kind == "round":
            print(round_line(event), file=stream, flush=True)

    return listen


def _actors(experiment: Any) -> list[str]:
    rows = experiment.folder.read("environment.json")["actors"]
    return [
        f"actor {row['actor']}  {row['role']}  pid {row['pid']}  node {row['node']}  "
        f"share {row['share']}  clients {row['clients']}"
        for row in rows
    ]


@contextlib.contextmanager
def _live(experiment: Any) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("setup", total=None, facts="loading data, starting actors")
        started = time.perf_counter()

        def listen(event: Event) -> None:
            if event.kind == "start":
                took = time.perf_counter() - started
                console.print(f"set up in {took:.1f} s", *_actors(experiment), sep="\n")
                progress.update(bar, total=event.rounds, completed=event.round, facts="")
            if event.kind == "round":
                progress.update(bar, advance=1, description=event.stage)
                progress.update(bar, facts="  ".join(_facts(event.record or {})))
                if event.stage != "train":
                    console.print(round_line(event))

        yield listen

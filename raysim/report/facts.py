"""The numbers of one run, from its result and its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raysim.report.records import Run, numbers
from raysim.runs.record import RoundRecord, finite_number

LAST = 5
"""The mean of this many last evaluations is shown beside the last one."""


@dataclass(frozen=True)
class Point:
    """Where in a run a record stands."""

    round: int
    """Rounds of training so far, over all stages."""
    bytes: float
    """Megabytes sent up and down so far."""
    seconds: float


def points(run: Run) -> Iterator[tuple[Point, RoundRecord]]:
    rounds, nbytes, seconds = 0, 0.0, 0.0
    for record in run.records:
        rounds += record.has("loss")
        nbytes += record.bytes("up") + record.bytes("down")
        seconds += record.number("seconds") or 0.0
        yield Point(rounds, nbytes / 1e6, seconds), record


def accuracies(run: Run) -> list[float]:
    """Return the mean accuracy over clients at every evaluation."""
    found = (record.number("accuracy", "mean") for record in run.records)
    return [value for value in found if value is not None]


def accuracy(run: Run) -> float | None:
    own = finite_number(run.result, "accuracy", "mean")
    curve = accuracies(run)
    return own if own is not None else curve[-1] if curve else None


def last_accuracies(run: Run) -> float | None:
    tail = accuracies(run)[-LAST:]
    return sum(tail) / len(tail) if tail else accuracy(run)


def best_accuracy(run: Run) -> float | None:
    """Return the best of all evaluations; picking it in practice would need a test set."""
    return max(accuracies(run), default=accuracy(run))


def ari(run: Run) -> float | None:
    """Return the agreement of the newest groups with the tasks."""
    return _final(run, "ari")


def noise(run: Run, when: str) -> float | None:
    """Return the share of wrong labels: ``when`` is "before" or "after"."""
    return _final(run, "labels", f"noise_{when}")


def sd_of_clients(run: Run) -> float | None:
    return _final(run, "accuracy", "std")


def _final(run: Run, *path: str) -> float | None:
    """Return a number of the result or, where there is none, of the newest record that has it."""
    own = finite_number(run.result, *path)
    return own if own is not None else finite_number(run.last(path[0]), *path[1:])


def megabytes(run: Run, way: str) -> float | None:
    """Return what was sent "up" or "down"."""
    own = finite_number(run.result, "bytes", way)
    if own is None and not any(record.has("bytes") for record in run.records):
        return None
    if own is None:
        own = sum(record.bytes(way) for record in run.records)
    return own / 1e6


def seconds(run: Run) -> float | None:
    """Return the time of setup and rounds, or of the recorded rounds."""
    own = finite_number(run.result, "seconds", "total")
    if own is not None:
        return own
    known = [value for r in run.records if (value := r.number("seconds")) is not None]
    return sum(known) if known else None


def restarts(run: Run) -> float | None:
    return finite_number(run.result, "restarts")


def by_task(run: Run) -> list[float] | None:
    return numbers(run.last("by_task"), "accuracy")


def per_client(run: Run) -> list[float] | None:
    """Return the last accuracy of every client on its own task."""
    own = numbers(run.result, "accuracy", "per_client")
    return own or numbers(run.last("per_client"))


def task_names(runs: Sequence[Run], count: int) -> list[str]:
    """Return "task 1" and so on, with their classes where all runs agree on them."""
    plain = [f"task {i + 1}" for i in range(count)]
    found = [_task_classes(run, count) for run in runs]
    if not found or found[0] is None or any(other != found[0] for other in found):
        return plain
    return [f"{name} ({words})" for name, words in zip(plain, found[0], strict=True)]


def _task_classes(run: Run, count: int) -> list[str] | None:
    """Return the classes of the tasks, in the order in which clients first have them."""
    tasks, task_of = run.federation.get("tasks"), numbers(run.federation, "task_of")
    names = run.federation.get("class_names")
    if not isinstance(tasks, list) or not isinstance(names, list) or task_of is None:
        return None
    order = list(dict.fromkeys(int(task) for task in task_of))
    if len(order) != count:
        return None
    try:
        return [", ".join(str(names[c]) for c in tasks[task]) for task in order]
    except (IndexError, TypeError):
        return None

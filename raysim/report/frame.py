"""The numbers of all runs in one tidy frame: a row per run as a whole and a row per round.

Every table and curve of a report is a ``groupby`` of it. Columns that tell rows apart: ``of``
("run" or "round"), ``series`` (a method in a setting), ``setting``, ``method``, ``run``, ``seed``,
``finished`` and ``stage``. Where a round stands in its run: ``round`` (of training, over all
stages), ``bytes`` (megabytes sent so far) and ``seconds`` (so far). All others are values, NaN
where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysim.report.records import Run, numbers
from raysim.runs.record import RoundRecord, finite_number

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
LAST = 5
"""The mean of this many last evaluations is shown beside the last one."""
SCORES = ("precision", "recall", "f_score")
NOISY = ("precision", "recall", "f1", "auroc", "correlation")
FINAL: Mapping[str, Sequence[str]] = {
    "sd_of_clients": ("accuracy", "std"),
    "top5": ("top5", "mean"),
    "ari": ("ari",),
    "noise_before": ("labels", "noise_before"),
    "noise_after": ("labels", "noise_after"),
    **{f"{key}.{name}": (key, name) for key in ("selection", "judged") for name in SCORES},
    **{f"{key}_of_wrong": (f"{key}_of_wrong", "f_score") for key in ("selection", "judged")},
    **{f"noisy.{name}": ("noisy_clients", name) for name in NOISY},
}
"""Values of a run: of its result or, where there is none, of the newest record that has them."""
PER_ROUND: Mapping[str, Sequence[str]] = {
    "accuracy": ("accuracy", "mean"),
    "test_loss": ("test_loss",),
    "loss": ("loss",),
    "precision": ("selection", "precision"),
    "recall": ("selection", "recall"),
}


def make_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the frame of runs that have their names."""
    import pandas as pd

    rows: list[Row] = []
    for run in runs:
        who: Row = {"series": run.series, "setting": run.setting, "method": run.short}
        who |= {"run": run.label, "seed": run.seed, "finished": run.is_finished}
        rounds = list(_rounds(run))
        rows.append({"of": "run", **who, **_whole(run, rounds)})
        rows += [{"of": "round", **who, **row} for row in rounds]
    return pd.DataFrame([{k: math.nan if v is None else v for k, v in row.items()} for row in rows])


def _rounds(run: Run) -> Iterator[Row]:
    rounds, nbytes, seconds = 0, 0, 0.0
    for record in run.records:
        took = record.number("seconds")
        rounds += record.has("loss")
        nbytes += record.bytes("up") + record.bytes("down")
        seconds += took or 0.0
        yield {
            **{"round": rounds, "bytes": nbytes / 1e6, "seconds": seconds},
            **{"stage": record.stage or "rounds", "took": took},
            **{name: record.number(*path) for name, path in PER_ROUND.items()},
            **_tasks(record.by_task),
            **_messages(record),
        }


def _messages(record: RoundRecord) -> dict[str, float]:
    """Return megabytes by direction and message."""
    return {
        f"{way}: {message}": nbytes / 1e6
        for way in ("up", "down")
        for message, nbytes in record.messages(way).items()
    }


def _tasks(by_task: Any) -> dict[str, float]:
    return {
        f"{entry} of task {i + 1}": value
        for entry in ("accuracy", "loss")
        for i, value in enumerate(numbers(by_task, entry) or ())
    }


def _whole(run: Run, rounds: Sequence[Row]) -> Row:
    """Return the values of a run as a whole; "setup" is its first stage."""
    curve = [row["accuracy"] for row in rounds if row["accuracy"] is not None]
    tail = curve[-LAST:]
    accuracy = finite_number(run.result, "accuracy", "mean")
    if accuracy is None and curve:
        accuracy = curve[-1]
    noisy = run.last("noisy_clients")
    found = noisy.get("found") if isinstance(noisy, Mapping) else None
    took = [row["took"] for row in rounds if row["took"] is not None]
    seconds = finite_number(run.result, "seconds", "total")
    up, down = (_megabytes(run, way) for way in ("up", "down"))
    return {
        **dict.fromkeys(("round", "seconds", *PER_ROUND)),
        **{"stage": "setup", "took": finite_number(run.result, "seconds", "setup")},
        **{name: _final(run, *path) for name, path in FINAL.items()},
        **{key: 1.0 if run.last(key) else None for key in ("selection", "judged", "noisy_clients")},
        "noisy.found": len(found) if isinstance(found, list) else None,
        "accuracy": accuracy,
        "last": sum(tail) / len(tail) if tail else accuracy,
        "best": max(curve, default=accuracy),
        "worst": min(per_client(run) or (), default=None),
        **{"up": up, "down": down, "bytes": None if up is None or down is None else up + down},
        "total_seconds": sum(took) if seconds is None and took else seconds,
        "restarts": finite_number(run.result, "restarts"),
        **_tasks(run.last("by_task")),
    }


def _final(run: Run, *path: str) -> float | None:
    own = finite_number(run.result, *path)
    return own if own is not None else finite_number(run.last(path[0]), *path[1:])


def _megabytes(run: Run, way: str) -> float | None:
    own = finite_number(run.result, "bytes", way)
    if own is None and any(record.has("bytes") for record in run.records):
        own = sum(record.bytes(way) for record in run.records)
    return None if own is None else own / 1e6


def per_client(run: Run) -> list[float] | None:
    """Return the last accuracy of every client on its own task."""
    own = numbers(run.result, "accuracy", "per_client")
    return own or numbers(run.last("per_client"))


def task_names(runs: Sequence[Run], count: int) -> list[str]:
    """Return the classes of each task, in words, where all runs agree on them; else nothing."""
    found = [_task_classes(run, count) for run in runs]
    return found[0] if found and all(found) and all(f == found[0] for f in found) else []


def _task_classes(run: Run, count: int) -> list[str]:
    """Return the classes of the tasks, in the order in which clients first have them."""
    tasks, task_of = run.federation.get("tasks"), numbers(run.federation, "task_of")
    names = run.federation.get("class_names")
    if not isinstance(tasks, list) or not isinstance(names, list) or task_of is None:
        return []
    order = list(dict.fromkeys(int(task) for task in task_of))
    if len(order) != count:
        return []
    try:
        return [", ".join(str(names[c]) for c in tasks[task]) for task in order]
    except (IndexError, TypeError):
        return []

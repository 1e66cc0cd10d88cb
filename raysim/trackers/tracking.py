"""The trackers that a config's ``track`` names: checked before a run, told what happens in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raysim.errors import Interrupted
from raysim.runs.folder import RunFolder
from raysim.runtime.coordinator import Listener
from raysim.trackers.mlflow import Mlflow
from raysim.trackers.tensorboard import TensorBoard

TRACKERS = {"tensorboard": TensorBoard, "mlflow": Mlflow}


def check_trackers(names: Sequence[str], folder: RunFolder) -> None:
    """Refuse, before the run starts, trackers that cannot work."""
    for name, tracker in TRACKERS.items():
        if name in names:
            tracker.check(folder)


@contextlib.contextmanager
def tracking(
    names: Sequence[str],
    folder: RunFolder,
    *,
    run: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> Iterator[list[Listener]]:
    """Yield the listeners of the trackers; ``parameters`` is the flat config."""
    trackers = [TRACKERS[name](folder, run, parameters) for name in dict.fromkeys(names)]
    outcome = "failed"
    try:
        yield [tracker.listen for tracker in trackers]
        outcome = "done"
    except (Interrupted, KeyboardInterrupt, GeneratorExit):
        outcome = "stopped"
        raise
    finally:
        for tracker in trackers:
            tracker.attempt(lambda tracker=tracker: tracker.end(outcome))  # type: ignore[misc]

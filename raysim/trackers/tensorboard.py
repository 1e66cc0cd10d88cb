"""Event files for TensorBoard, in ``tensorboard/`` of the run directory.

Written by the package tensorboard alone: torch's writer would load torch, which not all runs do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysim.errors import ConfigError, EnvironmentNotFit
from raysim.runs.folder import RunFolder
from raysim.trackers.scalars import Point

FOLDER = "tensorboard"


def check_tensorboard(folder: RunFolder) -> None:
    """Refuse, before the run starts, a run directory or a machine where it cannot work."""
    if not isinstance(folder.path, Path):
        raise ConfigError(
            f"track: tensorboard writes to a folder of this machine, got output {folder.path}; use "
            "a path as output, or leave tensorboard out"
        )
    try:
        from tensorboard.summary.writer import event_file_writer  # noqa: F401
    except ImportError as wrong:
        raise EnvironmentNotFit(
            f"track: tensorboard is not installed here ({wrong}); pip install "
            "'raysim[tensorboard]', or leave it out"
        ) from wrong


class TensorBoard:
    """One event file per process of the run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = Path(folder.root) / FOLDER
        self._writer: Any = None

    def start(self, done: Sequence[Point]) -> None:
        """Begin a file; what an earlier one has past the last of ``done`` is taken back."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        is_new = not any(self._folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(self._folder))
        if is_new:
            for point in done:
                self._write(point)
            return
        next_step = (done[-1].step if done else 0) + 1
        again = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=next_step, session_log=again))

    def log(self, point: Point) -> None:
        self._write(point)
        self._writer.flush()

    def end(self, outcome: str) -> None:
        if self._writer is not None:
            self._writer.close()

    def _write(self, point: Point) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in point.values.items()]
        event = Event(wall_time=time.time(), step=point.step, summary=Summary(value=values))
        self._writer.add_event(event)

"""Event files for TensorBoard, in ``tensorboard/`` of the run directory.

Written by the package tensorboard alone: torch's writer would load torch, which not all runs do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raysim.errors import ConfigError
from raysim.runs.folder import RunFolder
from raysim.trackers.tracker import Point, Tracker, not_installed


class TensorBoard(Tracker):
    """One event file per process of the run."""

    name = "tensorboard"
    _writer: Any = None

    @staticmethod
    def check(folder: RunFolder) -> None:
        if not isinstance(folder.path, Path):
            raise ConfigError(
                f"track: tensorboard writes to a folder of this machine, got output {folder.path}; "
                "use a path as output, or leave tensorboard out"
            )
        try:
            from tensorboard.summary.writer import event_file_writer  # noqa: F401
        except ImportError as wrong:
            raise not_installed("tensorboard", wrong) from wrong

    def start(self, done: Sequence[Point]) -> None:
        """Begin a file; what an earlier one has past the last of ``done`` is taken back."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(self._folder.root) / "tensorboard"
        is_new = not any(folder.glob("events.out.tfevents.*"))
        self._writer = EventFileWriter(str(folder))
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

"""What a run says, kept in its directory.

``run.log`` is for people; ``events.jsonl`` holds one JSON object per line: when, how serious, what,
which run, stage and round, and the facts a log call passed with ``extra={"facts": {...}}``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from raysim.errors import Interrupted
from raysim.protocols import Where
from raysim.runs.folder import RunFolder
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event, Listener
from raysim.storage.files import finite

LOG, EVENTS = "run.log", "events.jsonl"
SEND_EVERY_S = 10.0
"""Least time between two uploads of a log; the end of the run uploads it once more."""
SHOWN = ("seconds", "loss", "late")
"""Entries of a round's record that its event repeats; rounds.jsonl has them all."""


class Lines:
    """A growing text file of the run directory.

    On a disk each line is written at once; at a URL, where nothing can be appended to, lines are
    kept and sent now and then. What cannot be written is dropped: a run must not end because of
    its log, and meets the same full disk soon enough, with one clear error.
    """

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._storage, self._name = folder.storage, name
        self._kept: list[str] = []
        self._file: TextIO | None = None
        self._sent_at = time.monotonic()
        with contextlib.suppress(OSError):
            if isinstance(folder.path, Path):
                self._file = (folder.path / name).open("a", encoding="utf-8")
            elif self._storage.exists(name):  # a resumed run goes on with its log
                self._kept.append(self._storage.read(name).decode())

    def write(self, text: str) -> None:
        if self._file is None:
            self._kept.append(text)
            return
        with contextlib.suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Hand what was added to the system."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.flush()

    def send(self, *, every_s: float = SEND_EVERY_S) -> None:
        """Send what is kept, if that is due."""
        if self._file is None and time.monotonic() - self._sent_at >= every_s:
            self._sent_at = time.monotonic()
            with contextlib.suppress(OSError):
                self._storage.write(self._name, "".join(self._kept).encode())

    def close(self) -> None:
        """Send the rest and end."""
        self.send(every_s=0.0)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


class EventLog(logging.Handler):
    """Turns log records and the coordinator's events into JSON lines."""

    def __init__(
        self, lines: Lines, *, run: Mapping[str, Any], where: Callable[[], Where | None]
    ) -> None:
        """``where`` tells which round goes on; None before the first."""
        super().__init__()
        self._lines, self._run, self._where = lines, dict(run), where

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.write(json.dumps(finite(self._line(record)), default=str) + "\n")
            self._lines.flush()
        except Exception:
            self.handleError(record)

    def listen(self, event: Event) -> None:
        """Write what the coordinator tells."""
        facts: dict[str, Any] = {"event": event.kind}
        if event.kind == "start":
            facts |= {"finished": event.round, "rounds": event.rounds}
            self.tell(f"started after {event.round} of {event.rounds} rounds", **facts)
        elif event.kind == "round":
            facts |= {"stage": event.stage, "round": event.round, **_shown(event.record)}
            self.tell(f"{event.stage} {event.round}/{event.rounds}", **facts)
        elif event.kind == "commit":
            self.tell(
                f"committed after round {event.round} of the run", finished=event.round, **facts
            )

    def tell(self, message: str, level: str = "INFO", **facts: Any) -> None:
        """Write a line of our own, into this file only."""
        made = {"msg": message, "levelname": level, "facts": facts}
        self.handle(logging.makeLogRecord(made))

    def _line(self, record: logging.LogRecord) -> dict[str, Any]:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": when, "level": record.levelname, "message": record.getMessage()}
        where = self._where()
        place = {} if where is None else {"stage": where.stage, "round": where.round + 1}
        return {**line, "run": self._run, **place, **getattr(record, "facts", {})}


@contextlib.contextmanager
def keep_logs(
    folder: RunFolder, *, run: Mapping[str, Any], where: Callable[[], Where | None]
) -> Iterator[Listener]:
    """Keep run.log and events.jsonl while a run goes on; yield the listener of its events."""
    log, events = Lines(folder, LOG), Lines(folder, EVENTS)
    text = logging.StreamHandler(log)
    text.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    lines = EventLog(events, run=run, where=where)

    def listen(event: Event) -> None:
        lines.listen(event)
        if event.kind == "commit":
            log.send()
            events.send()

    root = logging.getLogger("raysim")
    for handler in (text, lines):
        root.addHandler(handler)
    try:
        yield listen
        lines.tell("run ended: done", event="end", outcome="done")
    except BaseException as wrong:  # into the files only: whoever called gets the error itself
        text.handle(logging.makeLogRecord({"levelname": "ERROR", "msg": _story(wrong)}))
        lines.tell(f"run ended: {wrong}", "ERROR", **_end(wrong))
        raise
    finally:
        for handler in (text, lines):
            root.removeHandler(handler)
            handler.close()
        log.close()
        events.close()


def _shown(record: RoundRecord | None) -> dict[str, Any]:
    if record is None:
        return {}
    shown = {name: value for name in SHOWN if (value := record.get(name)) is not None}
    if record.accuracy is not None:
        shown["accuracy"] = record.accuracy["mean"]
    return shown | {
        f"{direction}_bytes": record.bytes(direction) for direction in record.sent or ()
    }


def _end(wrong: BaseException) -> dict[str, Any]:
    stopped = isinstance(wrong, Interrupted | KeyboardInterrupt)
    facts = {"event": "end", "outcome": "stopped" if stopped else "failed"}
    facts["error"] = type(wrong).__name__
    for name in ("client", "task", "node"):
        if getattr(wrong, name, None) not in (None, ""):
            facts[name] = getattr(wrong, name)
    return facts


def _story(wrong: BaseException) -> str:
    """Return the error and, where a client or server raised it, the traceback from there."""
    trace = str(getattr(wrong, "trace", "") or "").rstrip()
    return f"run ended: {wrong}" + (f"\n{trace}" if trace else "")

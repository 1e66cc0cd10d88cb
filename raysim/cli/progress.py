"""What a person sees while a run goes on.

Live on a terminal, one plain line per round elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

from raysim.cli.live import can_move_cursor, live_screen
from raysim.cli.story import Story, record_line
from raysim.errors import Interrupted
from raysim.runtime.coordinator import Event, Listener


@contextlib.contextmanager
def show_progress(experiment: Any, *, stream: TextIO, quiet: bool) -> Iterator[Listener]:
    """Yield the listener that fits the output: none, live, or plain lines."""
    if quiet:
        yield lambda event: None
    elif can_move_cursor(sys.stderr) and stream.isatty():
        with _live(experiment) as listener:
            yield listener
    else:
        yield _plain(experiment, stream)


def log_to_terminal() -> None:
    """Send warnings of raysim (a lost actor, a capped rank) to standard error."""
    logger = logging.getLogger("raysim")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = _Terminal(logging.WARNING)
        handler.setFormatter(logging.Formatter("raysim: %(message)s"))
        logger.addHandler(handler)
    logging.captureWarnings(True)


class _Terminal(logging.Handler):
    """Writes to what is standard error now: a live screen takes its place and prints above."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _plain(experiment: Any, stream: TextIO) -> Listener:
    say = partial(print, file=stream, flush=True)

    def listen(event: Event) -> None:
        if event.kind == "start":
            facts = experiment.folder.read("environment.json")
            say("runtime {kind}: {why}".format(**facts["runtime"]))
            for row in facts["actors"]:
                gpus = "".join(f"  gpu {gpu}" for gpu in row.get("gpu_ids", ()))
                name = row.get("name") or row["actor"]
                say(
                    f"actor {name}  {row['role']}  pid {row['pid']}  node {row['node']}"
                    f"{gpus}  share {row['share']}  clients {row['clients']}"
                )
            if event.round:
                say(f"resumed after {event.round} of {event.rounds} rounds")
        if event.record is not None:
            say(record_line(event.record, event.rounds))

    return listen


@contextlib.contextmanager
def _live(experiment: Any) -> Iterator[Listener]:
    """Draw the screen while a run goes on; it stays when the run has ended."""
    from rich.console import Console

    story = Story(message="loading data, starting actors", started=datetime.now(UTC))
    story.describe(experiment.config)

    def listen(event: Event) -> None:
        if event.kind == "start":
            story.outcome, story.message = "running", ""
            story.meet(experiment.folder.read("environment.json")["actors"])
            for record in experiment.folder.records(event.round):  # of the run that is resumed
                story.add_record(record)
        elif event.record is not None:
            story.add_record(event.record)

    warnings = _Warnings(story)
    logging.getLogger("raysim").addHandler(warnings)
    outcome = "failed"  # what went wrong is printed where it is caught
    try:
        with live_screen(story, Console(stderr=True)):
            try:
                yield listen
                outcome = "done"
            except (Interrupted, KeyboardInterrupt):
                outcome = "stopped"
                raise
            finally:
                story.add_event({"event": "end", "outcome": outcome})
    finally:
        logging.getLogger("raysim").removeHandler(warnings)


class _Warnings(logging.Handler):
    """Hands warnings to the story as the lines that events.jsonl gets."""

    def __init__(self, story: Story) -> None:
        super().__init__(logging.WARNING)
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        told = {"level": record.levelname, "message": record.getMessage()}
        self._story.add_event({**told, **getattr(record, "facts", {})})

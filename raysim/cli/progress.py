"""What a person sees while a run goes on.

Live on a terminal, one plain line per round elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

from raysim.cli.live import Screen
from raysim.cli.story import Story, group_facts, noise_facts, stages_of, title_of
from raysim.errors import Interrupted
from raysim.runs.record import RoundRecord
from raysim.runtime.coordinator import Event, Listener

DUMB = ("dumb", "unknown")
"""Terminals that cannot move their cursor."""


@contextlib.contextmanager
def show_progress(experiment: Any, *, stream: TextIO, quiet: bool) -> Iterator[Listener]:
    """Yield the listener that fits the output: none, live, or plain lines."""
    if quiet:
        yield lambda event: None
    elif sys.stderr.isatty() and stream.isatty() and os.environ.get("TERM") not in DUMB:
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


def record_line(record: RoundRecord, rounds: int | None) -> str:
    """Return the line of a record; ``rounds`` of its stage, where they are known."""
    of = "" if rounds is None else f"/{rounds}"
    facts = [f"{record.stage} {record.round}{of}"]
    if record.accuracy is not None:
        mean, std = record.accuracy["mean"], record.accuracy["std"]
        facts.append(f"acc {100 * mean:.1f} ± {100 * std:.1f}")
    if record.loss is not None:
        facts.append(f"loss {record.loss:.3f}")
    if record.groups is not None:
        facts.append(f"groups {record.num_groups}{group_facts(record)}")
    if record.noise is not None:
        facts.append(noise_facts(record.noise))
    if record.sent is not None:
        facts.append(f"up {record.bytes('up') / 1e6:.2f} MB")
    return "  ".join([*facts, f"{record.seconds:.1f} s"])


def _plain(experiment: Any, stream: TextIO) -> Listener:
    say = partial(print, file=stream, flush=True)

    def listen(event: Event) -> None:
        if event.kind == "start":
            facts = experiment.folder.read("environment.json")
            say("runtime {kind}: {why}".format(**facts["runtime"]))
            for row in facts["actors"]:
                say(
                    f"actor {row['actor']}  {row['role']}  pid {row['pid']}  node {row['node']}  "
                    f"share {row['share']}  clients {row['clients']}"
                )
            if event.round:
                say(f"resumed after {event.round} of {event.rounds} rounds")
        if event.kind == "round":
            say(record_line(event.record or RoundRecord(), event.rounds))

    return listen


@contextlib.contextmanager
def _live(experiment: Any) -> Iterator[Listener]:
    """Draw the screen while a run goes on; it stays when the run has ended."""
    from rich.console import Console
    from rich.live import Live

    config = experiment.config
    story = Story(title_of(config), stages=stages_of(config))
    story.message, story.started = "loading data, starting actors", datetime.now(UTC)
    warnings = _Warnings(story)
    screen = Live(
        get_renderable=lambda: Screen(story.view()),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    logging.getLogger("raysim").addHandler(warnings)
    try:
        with screen:
            try:
                yield lambda event: _tell(story, event, experiment)
            except BaseException as wrong:
                _end(story, wrong)
                raise
            _end(story)
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


def _tell(story: Story, event: Event, experiment: Any) -> None:
    if event.kind == "start":
        began = story.started  # the clock goes on from the setup
        story.add_event({"event": "start"})
        story.started = began
        story.meet(experiment.folder.read("environment.json")["actors"])
        for record in experiment.folder.records(event.round):  # of the run that is resumed
            story.add_record(record)
    elif event.record is not None:
        story.add_record(event.record)


def _end(story: Story, wrong: BaseException | None = None) -> None:
    """Show how it ended; what went wrong is printed by whoever catches it."""
    stopped = isinstance(wrong, Interrupted | KeyboardInterrupt)
    outcome = "done" if wrong is None else "stopped" if stopped else "failed"
    story.add_event({"event": "end", "outcome": outcome})

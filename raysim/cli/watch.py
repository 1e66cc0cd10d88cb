"""``raysim watch``: a run seen from another terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from raysim.cli.live import Screen
from raysim.cli.options import trust_option
from raysim.cli.story import ENDED, Story, stages_of, title_of
from raysim.errors import ConfigError, DataError, RaysimError
from raysim.runs.record import RoundRecord

if TYPE_CHECKING:
    from raysim.storage.objects import Storage

QUIET_S = 3.0
"""Seconds without a new line after which the lock is asked whether anybody is still there."""


@click.command("watch")
@click.argument("run")
@trust_option
@click.option("--once", is_flag=True, help="Show it as it is now and leave.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
def command(run: str, once: bool, interval: float) -> None:
    """Follow RUN, a run directory or URL, from another terminal; nothing in it is changed.

    Ends with the run: exit code 0 when it is done, 1 when it failed, was stopped or is not running
    any more. Ctrl-C ends only the watching (130). In a pipe: one plain line per round.
    """
    from raysim.storage.files import reason

    try:
        storage = _run_at(run)
        code = _once(Follower(storage)) if once else _follow(Follower(storage), interval)
    except OSError as wrong:
        raise DataError(f"{run} cannot be read ({reason(wrong)}); make it reachable") from wrong
    except KeyboardInterrupt:
        code = 130
    raise click.exceptions.Exit(code)


def _run_at(run: str) -> Storage:
    """Return the run directory, the only one below a folder, or one that is not there yet."""
    from raysim.runs.folder import find_runs
    from raysim.storage.objects import open_storage, place

    found = find_runs(run)
    if len(found) > 1:
        names = ", ".join(storage.root for storage in found[:3])
        raise ConfigError(f"{run} holds {len(found)} runs ({names}, ...); watch one of them")
    return found[0] if found else open_storage(place(run))


# ---- following -----------------------------------------------------------------------------


class Lines:
    """The complete lines of a growing file, each given once."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._offset, self._inode, self._count = 0, 0, 0

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether the file was made anew since, and what was added (or all of it)."""
        try:
            with self._storage.open(self._name) as file:
                try:
                    stat = os.fstat(file.fileno())
                    size, inode = stat.st_size, stat.st_ino
                except io.UnsupportedOperation:  # fetched from a URL
                    size, inode = file.seek(0, os.SEEK_END), 0
                again = size < self._offset or inode != self._inode
                if again:
                    self._offset, self._inode = 0, inode
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            again, content = self._offset > 0, b""
            self._offset = self._inode = 0
        whole = content[: content.rfind(b"\n") + 1]  # the last line may still be written
        self._offset += len(whole)
        lines = []
        for text in whole.splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
        return again, [line for line in lines if isinstance(line, dict)]


class Follower:
    """Reads a run directory again and again into one story."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.story = Story(storage.root)
        self.added: Sequence[RoundRecord] = ()
        """Records that the last look found."""
        self._events, self._rounds = Lines(storage, "events.jsonl"), Lines(storage, "rounds.jsonl")
        self._is_known = False
        self._has_looked = self._was_free = False
        self._changed_at = float("-inf")

    def look(self) -> Story:
        """Take in what is new and return the story."""
        story = self.story
        if not self.storage.exists("config.yaml"):
            story.outcome, story.message = "waiting", "no run here yet; waiting for it to start"
            return story
        if story.outcome == "waiting":
            story.outcome, story.message = "setup", ""
        is_finished = self.storage.exists("result.json")  # before the rounds: it comes after them
        self._meet()
        _, events = self._events.new()
        restarted, lines = self._rounds.new()
        self.added = [RoundRecord.from_json(line) for line in lines]
        if restarted:
            story.forget_rounds()
        for event in events:
            if event.get("event") == "start":
                story.begin()
            # "back" drops rounds, which the file of rounds shows by itself.
            story.add_event({**event, "event": None} if event.get("event") == "back" else event)
        for record in self.added:
            story.add_record(record)
        if self._has_looked and (events or self.added):
            self._changed_at = time.monotonic()
        self._has_looked = True
        self._judge(is_finished=is_finished)
        return story

    def _judge(self, *, is_finished: bool) -> None:
        """Say whether the run is done, and if it tells nothing, whether it lives."""
        story = self.story
        if is_finished:
            story.outcome, story.message = "done", ""
            return
        ended = story.outcome in ("failed", "stopped", "done")
        if not ended and time.monotonic() - self._changed_at < QUIET_S:
            return
        is_free = not self.storage.is_in_use()
        if not is_free and ended:  # somebody goes on with it
            story.outcome, story.message = "setup", "starting again"
        elif is_free and not ended and self._was_free:  # it may have ended between two looks
            story.outcome, story.ended = "lost", story.told
            story.message = "no process holds this run; go on with --resume"
        elif story.outcome == "lost" and not is_free:
            story.outcome, story.message, story.ended = "running", "", None
        self._was_free = is_free

    def _meet(self) -> None:
        """Read who takes part, once it is known."""
        if self._is_known or not self.storage.exists("environment.json"):
            return
        with contextlib.suppress(ValueError):
            self.story.meet(json.loads(self.storage.read("environment.json")).get("actors", []))
        _describe(self.story, self.storage)
        self._is_known = True


def _describe(story: Story, storage: Storage) -> None:
    """Give the story its title and stages; a config of another raysim leaves them out."""
    from raysim.config import load_saved
    from raysim.runs.folder import RunFolder

    try:
        plain = RunFolder(storage.root).saved_config()
        config = load_saved(plain, f"{storage.root}/config.yaml")
        story.title, story.stages = title_of(config), stages_of(config)
    except RaysimError as wrong:
        click.echo(f"raysim: title and stages are left out: {wrong}", err=True)


# ---- showing -------------------------------------------------------------------------------


def _once(follower: Follower) -> int:
    from rich.console import Console

    story = follower.look()
    if story.outcome == "waiting":
        raise DataError(f"no run directory at {follower.storage.root}; `raysim run` makes one")
    story = follower.look()  # the lock is asked twice
    Console().print(Screen(story.view()))
    return _code(story)


def _follow(follower: Follower, interval: float) -> int:
    if not (sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")):
        return _follow_plainly(follower, interval)
    from rich.console import Console
    from rich.live import Live

    story = follower.look()
    with Live(get_renderable=lambda: Screen(story.view()), console=Console(), refresh_per_second=4):
        while story.outcome not in ENDED:
            time.sleep(interval)
            follower.look()
    return _code(story)


def _follow_plainly(follower: Follower, interval: float) -> int:
    from raysim.cli.progress import record_line

    said = ""
    while True:
        story = follower.look()
        rounds = dict(story.stages)
        for record in follower.added:
            click.echo(record_line(record, rounds.get(record.stage)))
        if story.message and story.message != said:
            click.echo(f"raysim: {story.message}", err=True)
        said = story.message
        if story.outcome in ENDED:
            if story.outcome == "done":
                click.echo(f"done after {story.num_rounds} rounds")
            return _code(story)
        time.sleep(interval)


def _code(story: Story) -> int:
    return 1 if story.outcome in ("failed", "stopped", "lost") else 0

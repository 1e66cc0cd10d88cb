"""``raysim watch``: a run seen from another terminal."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING

import click

from raysim.cli.live import Screen, can_move_cursor, live_screen
from raysim.cli.options import trust_option
from raysim.cli.story import BROKEN, Story, record_line
from raysim.errors import ConfigError, DataError, RaysimError
from raysim.runs.record import RoundRecord, parse_records

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

    Ends with the run: exit code 0 when it is done, 1 when it failed, was stopped, is not running
    any more or its records are damaged. Ctrl-C ends only the watching (130). In a pipe: one
    plain line per round.
    """
    from raysim.storage.files import reason

    try:
        follower = Follower(_run_at(run))
        code = _once(follower) if once else _follow(follower, interval)
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


class Growing:
    """A file of complete lines that grows, or is made anew."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name, self._seen = storage, name, b""

    def new(self) -> tuple[bool, str]:
        """Return whether the file was made anew since, and the lines added (or all of them)."""
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = self._storage.read(self._name)
        whole = content[: content.rfind(b"\n") + 1]  # the last line may still be written
        before, self._seen = self._seen, whole
        is_anew = not whole.startswith(before)
        return is_anew, whole[0 if is_anew else len(before) :].decode(errors="replace")


class Follower:
    """Reads a run directory again and again into one story."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.story = Story(storage.root)
        self.added: list[RoundRecord] = []
        """Records that the last look found."""
        self._events = Growing(storage, "events.jsonl")
        self._rounds = Growing(storage, "rounds.jsonl")
        self._is_known = self._has_looked = self._was_free = False
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
        _, events = self._events.new()
        is_anew, rounds = self._rounds.new()
        self.added, _ = parse_records(rounds)
        if is_anew:
            story.rounds.clear()
        for text in events.splitlines():
            with contextlib.suppress(ValueError, TypeError):
                event = dict(json.loads(text))
                if event.get("event") == "start":
                    story.begin()
                if event.get("event") == "back":  # the file of rounds shows what was dropped
                    del event["event"]
                story.add_event(event)
        for record in self.added:
            story.add_record(record)
        self._describe()
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

    def _describe(self) -> None:
        """Read who takes part, once it is known, and the plan, if this raysim reads the config."""
        from raysim.config import load_saved
        from raysim.runs.folder import RunFolder

        if self._is_known or not self.storage.exists("environment.json"):
            return
        self._is_known = True
        with contextlib.suppress(ValueError):
            self.story.meet(json.loads(self.storage.read("environment.json")).get("actors", []))
        try:
            plain = RunFolder(self.storage.root).saved_config()
            self.story.describe(load_saved(plain, f"{self.storage.root}/config.yaml"))
        except RaysimError as wrong:
            click.echo(f"raysim: title and stages are left out: {wrong}", err=True)


# ---- showing -------------------------------------------------------------------------------


def _once(follower: Follower) -> int:
    from rich.console import Console

    story = follower.look()
    if story.outcome == "waiting":
        raise DataError(f"no run directory at {follower.storage.root}; `raysim run` makes one")
    follower.look()  # the lock is asked twice
    Console().print(Screen(story))
    return _code(follower)


def _follow(follower: Follower, interval: float) -> int:
    from rich.console import Console

    story, said = follower.story, ""
    is_live = can_move_cursor(sys.stdout)
    with live_screen(story, Console()) if is_live else contextlib.nullcontext():
        while True:
            follower.look()
            if not is_live:
                said = _tell(follower, said)
            if story.outcome == "done" or story.outcome in BROKEN:
                break
            time.sleep(interval)
    return _code(follower)


def _tell(follower: Follower, said: str) -> str:
    """Print a line per new round, and the story's message unless it was ``said``; return it."""
    story, rounds = follower.story, dict(follower.story.stages)
    for record in follower.added:
        click.echo(record_line(record, rounds.get(record.stage)))
    if story.message and story.message != said:
        click.echo(f"raysim: {story.message}", err=True)
    if story.outcome == "done":
        click.echo(f"done after {len(story.rounds)} rounds")
    return story.message


def _code(follower: Follower) -> int:
    from raysim.runs.checksums import RECORDS, read_checked

    wrong = ""
    with contextlib.suppress(FileNotFoundError):
        _, wrong = read_checked(follower.storage, RECORDS)
    if wrong:
        where = f"{follower.storage.root}/{RECORDS}"
        click.echo(f"raysim: {where} is damaged ({wrong}); what is shown may be wrong", err=True)
    return 1 if wrong or follower.story.outcome in BROKEN else 0

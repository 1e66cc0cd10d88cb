"""The screen of a run: a ``Story`` drawn as a few lines, whatever the width.

Colours only stress what words and marks say too.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TextIO

from raysim.cli.story import BROKEN, Story, count

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.table import Table

RECENT = 20
"""Recent rounds of a stage used to estimate the time left."""
SIDE = 9
"""Width of the labels on the left."""
WIDEST = 40
"""Most columns of a bar or a curve."""
STYLES = {"done": "green", "active": "cyan", "pending": "dim"}
STYLES |= {"failed": "red", "stopped": "yellow", "lost": "yellow"}
WORDS = {"lost": "not running", "setup": "setting up"}
SIGNS = {"done": "✓+", "active": "▸>", "pending": "·.", "broken": "✗x"}
"""State of a stage; the second sign is for terminals without Unicode, and so below."""
LEVELS, ABOUT = ("▁▂▃▄▅▆▇█", "_.-:=+*#"), ("±", "+-")


def can_move_cursor(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which a screen can be drawn again and again."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def live_screen(story: Story, console: Console) -> Live:
    """Return a screen that keeps up with a story while it is open, and stays."""
    from rich.live import Live

    return Live(get_renderable=lambda: Screen(story), console=console, refresh_per_second=4)


class Screen:
    """Draws a story as it is at ``now``, no line wider than the terminal."""

    def __init__(self, story: Story, now: datetime | None = None) -> None:
        self._story, self._now = story, now or datetime.now(UTC)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        story, width = self._story, options.max_width
        cut: Any = {"no_wrap": True, "overflow": "crop" if options.ascii_only else "ellipsis"}
        head = Table.grid(expand=True, padding=(0, 1))
        head.add_column(ratio=1, **cut)
        head.add_row(Text(story.title, style="bold"), _status(story, self._now))
        yield head
        yield _stages(story, options.ascii_only, cut)
        for name, *parts in (*_curves(story, width, options.ascii_only), *_people(story)):
            yield Text.assemble((f"{name:<{SIDE}}", "dim"), *parts, **cut)
        if story.message:
            yield Padding(Text(story.message, STYLES.get(story.outcome, "")), (0, 0, 0, 2))


def sparkline(values: Sequence[float], width: int, levels: str) -> str:
    """Return one character per value, or per equal share of them where there are too many."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        cuts = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, span = min(values), max(values) - min(values)
    top = len(levels) - 1
    return "".join(levels[round(top * (v - low) / span) if span else top // 2] for v in values)


def seconds_left(story: Story) -> float | None:
    """Return the time the rounds to come will take; None where their stages are still unknown."""
    total = 0.0
    for _, rounds, done in story.progress():
        left = rounds - len(done)
        if left > 0 and not done:
            return None
        if left > 0:
            recent = [r.seconds for r in done[-RECENT:]]
            total += left * sum(recent) / len(recent)
    return total


def clock(seconds: float) -> str:
    """Return 0:05, 12:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- parts ---------------------------------------------------------------------------------


def _status(story: Story, now: datetime) -> str:
    word = WORDS.get(story.outcome, story.outcome)
    parts = [f"[{STYLES.get(story.outcome, 'cyan')}]{word}[/]"]
    if story.rounds:
        parts.append(f"{len(story.rounds)}/{sum(rounds for _, rounds, _ in story.progress())}")
    if story.started and (seconds := ((story.ended or now) - story.started).total_seconds()) > 0:
        parts.append(clock(seconds))
    return "  ".join(parts)


def _stages(story: Story, ascii_only: bool, cut: Mapping[str, Any]) -> Table:
    """Return a line per stage: how far it is, then the time left, or what it found out last."""
    from rich.progress_bar import ProgressBar
    from rich.table import Column, Table
    from rich.text import Text

    table = Table.grid(expand=True, padding=(0, 1))
    for how in ({}, {}, {"justify": "right"}, {"ratio": 1}, {"justify": "right"}):
        table.add_column(**{**cut, **how})
    is_over, has_active = story.outcome in BROKEN, False
    for name, rounds, done in story.progress():
        state = "done" if len(done) >= rounds else "pending"
        if state == "pending" and not has_active:
            state, has_active = "broken" if is_over else "active", True
        middle: Any = Text(next((r.found for r in reversed(done) if r.found), ""))
        if state == "active" and rounds > 1:
            left = seconds_left(story)
            middle = Table.grid(Column(max_width=WIDEST), Column(no_wrap=True), padding=(0, 1))
            bar = ProgressBar(rounds, len(done), complete_style="cyan")
            middle.add_row(bar, "left ?" if left is None else f"left {clock(left)}")
        mark = Text(SIGNS[state][ascii_only], STYLES[story.outcome if state == "broken" else state])
        took = f"{sum(r.seconds for r in done):.1f} s" if done else ""
        table.add_row(mark, Text(name), f"{len(done)}/{rounds}", middle, took)
    return table


Line = tuple[Any, ...]
"""Label, then texts, alone or with a style."""


def _curves(story: Story, width: int, ascii_only: bool) -> Iterator[Line]:
    """Yield sparklines with their newest values, and what was sent."""
    curves = []
    measured = [r for r in story.rounds if r.accuracy is not None]
    if measured:
        values = [100 * (r.accuracy or 0.0) for r in measured]
        best = measured[max(range(len(values)), key=values.__getitem__)]
        more = f"  best {max(values):.1f} % in {best.stage} {best.round}"
        now = f"{values[-1]:.1f} % {ABOUT[ascii_only]} {100 * measured[-1].std:.1f}"
        curves.append(("accuracy", values, now, more))
    losses = [r.loss for r in story.rounds if r.loss is not None]
    if losses:
        curves.append(("loss", losses, f"{losses[-1]:.3f}", ""))
    for name, values, text, more in curves:
        room = width - SIDE - 2 - len(text)
        more = more if room - len(more) >= 8 else ""  # where there is room for both
        spark = sparkline(values, min(room - len(more), WIDEST), LEVELS[ascii_only])
        yield name, (spark, "cyan"), f"  {text}{more}"
    up, down = sum(r.up for r in story.rounds), sum(r.down for r in story.rounds)
    if up or down:
        yield "sent", f"up {up / 1e6:.2f} MB  down {down / 1e6:.2f} MB"


def _people(story: Story) -> Iterator[Line]:
    """Yield lines about actors, the GPUs they share, late clients and warnings."""
    if story.actors:
        nodes = len({row.get("node") for row in story.actors})
        missing = min(story.missing, len(story.actors))
        alive = f"{len(story.actors) - missing} of {len(story.actors)} alive"
        rebuilt = f", {story.restarts} rebuilt" if story.restarts else ""
        style = "yellow" if missing else ""
        yield "actors", (f"{alive} on {count(nodes, 'node')}", style), rebuilt
    gpus = Counter((row["node"], gpu) for row in story.actors for gpu in row.get("gpu_ids", ()))
    if gpus:
        places = [f"{gpu} on {node} ({count(n, 'actor')})" for (node, gpu), n in gpus.items()]
        yield "gpus" if len(gpus) > 1 else "gpu", ", ".join(places)
    late = [r.late for r in story.rounds if r.late]
    if late:
        who = ", ".join(map(str, late[-1][:8])) + (", ..." if len(late[-1]) > 8 else "")
        times, rounds = count(sum(map(len, late)), "time"), count(len(late), "round")
        yield "late", f"clients left behind {times} in {rounds}, last {who}"
    if story.warnings:
        head = f"{len(story.warnings)}, last: " if len(story.warnings) > 1 else ""
        last = " ".join(story.warnings[-1].split())
        yield "warnings" if head else "warning", (head + last, "yellow")

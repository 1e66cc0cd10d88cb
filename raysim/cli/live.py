"""The screen of a run: a ``RunView`` drawn as a few lines, whatever the width.

Colours only stress what words and marks say too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from raysim.cli.story import RunView

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

RECENT = 20
"""Recent rounds of a stage used to estimate the time left."""
SIDE = 9
"""Width of the labels on the left."""
STYLES = {"done": "green", "failed": "red", "stopped": "yellow", "lost": "yellow"}
WORDS = {"lost": "not running", "setup": "setting up"}


@dataclass(frozen=True)
class _Signs:
    """Characters that the terminal can show."""

    done: str = "✓"
    active: str = "▸"
    pending: str = "·"
    failed: str = "✗"
    full: str = "━"
    empty: str = "─"
    levels: str = "▁▂▃▄▅▆▇█"
    about: str = "±"


ASCII = _Signs("+", ">", ".", "x", "#", "-", "_.-:=+*#", "+-")


class Screen:
    """Draws a view with rich, no line wider than the terminal."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = ASCII if options.ascii_only else _Signs()
        for line in screen_lines(self._view, width=options.max_width, signs=signs):
            line.truncate(options.max_width, overflow="crop" if options.ascii_only else "ellipsis")
            yield line


def screen_lines(view: RunView, *, width: int, signs: _Signs) -> Iterator[Text]:
    """Yield the lines of a screen of ``width`` columns."""
    yield _between(f"[bold]{_escape(view.title)}[/]", _status(view), width)
    yield from _phases(view, width, signs)
    yield from _metrics(view, width, signs)
    yield from _people(view)
    if view.message:
        style = STYLES.get(view.outcome, "")
        for line in textwrap.wrap(view.message, max(width - 2, 20)):
            yield _styled(f"  {_escape(line)}", style)


def sparkline(values: Sequence[float], width: int, levels: str) -> str:
    """Return one character per value, or per equal share of them where there are too many."""
    if not values or width < 1:
        return ""
    if len(values) > width:
        cuts = [round(i * len(values) / width) for i in range(width + 1)]
        values = [_mean(values[a:b]) for a, b in pairwise(cuts)]
    low, span = min(values), max(values) - min(values)
    top = len(levels) - 1
    return "".join(levels[round(top * (v - low) / span) if span else top // 2] for v in values)


def seconds_left(view: RunView) -> float | None:
    """Return the time the rounds to come will take; None where their stages are still unknown."""
    done = {name: [r for r in view.rounds if r.stage == name] for name, _ in view.stages}
    total = 0.0
    for name, rounds in view.stages:
        left = rounds - len(done[name])
        if left <= 0:
            continue
        if not done[name]:
            return None
        total += left * _mean([r.seconds for r in done[name][-RECENT:]])
    return total


def clock(seconds: float) -> str:
    """Return 0:05, 12:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- parts ---------------------------------------------------------------------------------


def _status(view: RunView) -> str:
    total = sum(rounds for _, rounds in view.stages)
    word = WORDS.get(view.outcome, view.outcome)
    style = STYLES.get(view.outcome, "cyan")
    parts = [f"[{style}]{word}[/]"]
    if view.rounds and total:
        parts.append(f"{len(view.rounds)}/{total}")
    if view.elapsed_s:
        parts.append(clock(view.elapsed_s))
    return "  ".join(parts)


def _phases(view: RunView, width: int, signs: _Signs) -> Iterator[Text]:
    broke = view.outcome in ("failed", "stopped", "lost")
    has_active = False
    names = max((len(name) for name, _ in view.stages), default=0)
    counts = max((len(str(rounds)) for _, rounds in view.stages), default=1)
    for name, rounds in view.stages:
        done = [r for r in view.rounds if r.stage == name]
        is_done = len(done) >= rounds
        is_active = not is_done and not has_active
        has_active = has_active or is_active
        mark, style = (signs.done, "green") if is_done else (signs.pending, "dim")
        if is_active:
            mark, style = (signs.failed, STYLES[view.outcome]) if broke else (signs.active, "cyan")
        head = f"[{style}]{mark}[/] {name:<{names}}  {len(done):>{counts}}/{rounds:<{counts}}  "
        plain = 2 + names + 2 + 2 * counts + 1 + 2
        took = f"{sum(r.seconds for r in done):.1f} s" if done else ""
        right = f"{took:>9}"
        if is_active and rounds > 1 and not broke:
            middle = _bar(view, len(done) / rounds, width - plain - len(right) - 1, signs)
        else:  # what the stage found out last
            middle = _escape("  ".join(next((r.found for r in reversed(done) if r.found), ())))
        yield _between(head + middle, right, width)


def _bar(view: RunView, share: float, room: int, signs: _Signs) -> str:
    left = seconds_left(view)
    text = f"left {clock(left)}" if left is not None else "left ?"
    size = max(min(room - len(text) - 2, 40), 4)
    full = round(size * share)
    return f"[cyan]{signs.full * full}[/][dim]{signs.empty * (size - full)}[/]  {text}"


def _metrics(view: RunView, width: int, signs: _Signs) -> Iterator[Text]:
    measured = [r for r in view.rounds if r.accuracy is not None]
    if measured:
        values = [100 * (r.accuracy or 0.0) for r in measured]
        best = max(range(len(values)), key=lambda i: values[i])
        text = f"{values[-1]:.1f} % {signs.about} {100 * measured[-1].std:.1f}"
        more = f"  best {values[best]:.1f} % in {measured[best].stage} {measured[best].round}"
        yield _curve("accuracy", values, text, more, width, signs)
    losses = [r.loss for r in view.rounds if r.loss is not None]
    if losses:
        yield _curve("loss", losses, f"{losses[-1]:.3f}", "", width, signs)
    up, down = (sum(getattr(r, way) for r in view.rounds) for way in ("up", "down"))
    if up or down:
        yield _labelled("sent", f"up {up / 1e6:.2f} MB  down {down / 1e6:.2f} MB")


def _curve(
    name: str, values: Sequence[float], text: str, more: str, width: int, signs: _Signs
) -> Text:
    """Return a sparkline and its newest value; ``more`` where there is room for both."""
    room = width - SIDE - 2 - len(text)
    more = more if room - len(more) >= 8 else ""
    spark = sparkline(values, min(room - len(more), 40), signs.levels)
    return _labelled(name, f"[cyan]{spark}[/]  {_escape(text + more)}")


def _people(view: RunView) -> Iterator[Text]:
    if view.actors:
        alive = view.actors - view.missing
        text = f"{alive} of {view.actors} alive on {_count(view.nodes, 'node')}"
        rebuilt = f", {view.restarts} rebuilt" if view.restarts else ""
        style = "yellow" if view.missing else "none"
        yield _labelled("actors", f"[{style}]{text}[/]{rebuilt}")
    late = [r for r in view.rounds if r.late]
    if late:
        times = _count(sum(len(r.late) for r in late), "time")
        who = ", ".join(map(str, late[-1].late[:8])) + (", ..." if len(late[-1].late) > 8 else "")
        text = f"clients left behind {times} in {_count(len(late), 'round')}, last {who}"
        yield _labelled("late", text)
    if view.warnings:
        count, last = len(view.warnings), _escape(" ".join(view.warnings[-1].split()))
        head = "" if count == 1 else f"{count}, last: "
        yield _labelled("warning" if count == 1 else "warnings", f"[yellow]{head}{last}[/]")


# ---- text ----------------------------------------------------------------------------------


def _labelled(name: str, markup: str) -> Text:
    return _styled(f"[dim]{name:<{SIDE}}[/]{markup}")


def _between(left: str, right: str, width: int) -> Text:
    """Return two texts at the ends of a line; the left one gives way."""
    ours, theirs = _styled(left), _styled(right)
    room = width - theirs.cell_len - 1
    if ours.cell_len > room:
        ours.truncate(max(room, 1), overflow="crop")
    ours.append(" " * (width - ours.cell_len - theirs.cell_len))
    return ours.append_text(theirs)


def _styled(markup: str, style: str = "") -> Text:
    from rich.text import Text

    text = Text.from_markup(markup, style=style)
    text.no_wrap = True
    return text


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

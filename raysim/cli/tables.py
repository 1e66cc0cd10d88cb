"""Results as tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NAMES = (
    *("method", "dataset", "seed", "rounds", "accuracy %", "ARI", "noise before %"),
    *("noise after %", "up MB", "down MB", "seconds"),
)
WIDE = 110
"""Columns that the table of results needs."""


def print_result(summary: Mapping[str, Any]) -> None:
    """Print one run; on a narrow terminal a line per value."""
    if _console().width >= WIDE:
        print_results([summary])
    else:
        print_table((), zip(NAMES, _row(summary), strict=True), left=2)
    _console().print(f"run directory  {summary['run_dir']}", soft_wrap=True)


def print_results(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per run."""
    print_table(NAMES, map(_row, summaries), left=2)


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    title: str | None = None,
    wrap: bool = False,
) -> None:
    """Print a table without borders; its first ``left`` columns are aligned to the left.

    A narrow terminal cuts cells; ``wrap``: the last column is text, goes on below and is aligned to
    the left. Without a ``header`` every row has ``left`` cells.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.show_header = bool(header)
    names = header or [""] * left
    for i, name in enumerate(names, start=1):
        is_text = wrap and i == len(names)
        justify: Any = "left" if i <= left or is_text else "right"
        table.add_column(name, justify=justify, no_wrap=not is_text)
    for row in rows:
        table.add_row(*row)
    console = _console()
    with console.capture() as text:
        console.print(table)
    print("\n".join(line.rstrip() for line in text.get().splitlines()))


def _row(summary: Mapping[str, Any]) -> list[str]:
    accuracy, labels, sent = summary["accuracy"], summary["labels"], summary["bytes"]
    wrong = (labels["noise_before"], labels["noise_after"])
    return [
        summary["method"],
        summary["dataset"],
        str(summary["seed"]),
        str(summary["rounds"]),
        f"{100 * accuracy['mean']:.2f} ± {100 * accuracy['std']:.2f}",
        "-" if summary["ari"] is None else f"{summary['ari']:.3f}",
        *("-" if share is None else f"{100 * share:.2f}" for share in wrong),
        f"{sent['up'] / 1e6:.2f}",
        f"{sent['down'] / 1e6:.2f}",
        f"{summary['seconds']['total']:.1f}",
    ]


def _console() -> Any:
    from rich.console import Console

    # A pipe has no width; 80 columns would cut the table.
    return Console(width=None if sys.stdout.isatty() else 10_000, markup=False)

"""Results as tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = (
    *("method", "dataset", "seed", "rounds", "accuracy %", "ARI", "noise before %"),
    *("noise after %", "up MB", "down MB", "seconds"),
)
WIDE = 110
"""Columns that the table needs."""


def print_result(summary: Mapping[str, Any]) -> None:
    """Print one run; on a narrow terminal a line per value."""
    if _console().width >= WIDE:
        print_results([summary])
    else:
        for name, value in zip(NAMES, _row(summary), strict=True):
            _console().print(f"{name:<14} {value}", highlight=False)
    _console().print(f"run directory  {summary['run_dir']}", soft_wrap=True)


def print_results(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per run."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(NAMES):
        table.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for summary in summaries:
        table.add_row(*_row(summary))
    _console().print(table)


def _row(summary: Mapping[str, Any]) -> list[str]:
    accuracy, labels, sent = summary["accuracy"], summary["labels"], summary["bytes"]
    return [
        summary["method"],
        summary["dataset"],
        str(summary["seed"]),
        str(summary["rounds"]),
        f"{100 * accuracy['mean']:.2f} ± {100 * accuracy['std']:.2f}",
        "-" if summary["ari"] is None else f"{summary['ari']:.3f}",
        _percent(labels["noise_before"]),
        _percent(labels["noise_after"]),
        f"{sent['up'] / 1e6:.2f}",
        f"{sent['down'] / 1e6:.2f}",
        f"{summary['seconds']['total']:.1f}",
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"


def _console() -> Any:
    import sys

    from rich.console import Console

    # A pipe has no width; 80 columns would cut the table.
    return Console(width=None if sys.stdout.isatty() else 160, markup=False)

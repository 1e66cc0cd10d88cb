"""What a person may ask of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The command line, checked, and a folder that is removed at the end."""

    folder: Path
    repeats: int = 3
    rounds: int | None = None
    quick: bool = False
    peers: bool = False
    long: bool = False
    large: bool = False
    only: tuple[str, ...] = ()
    """Parts to measure, by the beginning of their names; empty: all."""

    def wants(self, part: str) -> bool:
        """Whether ``part`` is to be measured."""
        return not self.only or any(part.lower().startswith(name.lower()) for name in self.only)

"""Writes the table of messages in raysim/docs/privacy.md: every method, run and counted.

python tools/measured_messages.py       # after a method was added or sends something else
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from raysim import Experiment, load_config
from raysim.methods import METHODS

PAGE = Path(__file__).resolve().parents[1] / "raysim" / "docs" / "privacy.md"
HEAD = "| method | from clients | to clients |\n| --- | --- | --- |\n"
SMALL = (
    "data.dataset={name: synthetic, per_class: 60, test_per_class: 5}",
    "data.features=pixels",
    "data.server.per_class=10",
    "data.partition={kind: tasks, clients: 4, groups: 2}",
    "train.rounds=4",
    "train.epochs=1",
    "evaluate.every=100",
    "checkpoint.every=100",
    "runtime.kind=local",
)
ROW = re.compile(r"^\| `(\w+)` \| (.*) \| (.*) \|$", re.MULTILINE)


def measured(method: str, folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the messages that a small run of the method counts, by direction."""
    config = load_config("quickstart", [*SMALL, f"method={method}", f"output={folder / method}"])
    found = Experiment(config).run().summary["messages"]
    return {direction: list(sent) for direction, sent in found.items()}


def own_methods() -> list[str]:
    """Return the names of raysim's own methods."""
    return [n for n in METHODS.names() if METHODS.get(n).__module__.startswith("raysim.")]


def written() -> dict[str, dict[str, list[str]]]:
    """Return what the page says, by method."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {name: {"up": _words(up), "down": _words(down)} for name, up, down in rows}


def _words(cell: str) -> list[str]:
    return [] if cell == "nothing" else cell.split(", ")


def _row(method: str, sent: Mapping[str, Sequence[str]]) -> str:
    cells = [", ".join(sent[direction]) or "nothing" for direction in ("up", "down")]
    return f"| `{method}` | {cells[0]} | {cells[1]} |\n"


def main() -> None:
    """Run every method and replace the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [_row(name, measured(name, Path(folder))) for name in own_methods()]
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(HEAD)
    rest = after[after.index("\n\n") + 1 :]
    PAGE.write_text(f"{before}{HEAD}{''.join(rows)}{rest}", encoding="utf-8")
    sys.stdout.write(f"wrote {len(rows)} rows of {PAGE}\n")


if __name__ == "__main__":
    main()

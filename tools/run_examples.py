"""Runs the scripts in configs/examples cell by cell and writes what they print below each cell.

    python tools/run_examples.py            # after an example or what it shows has changed

Cells begin with ``# %%``; printed lines are kept as comments that begin with ``# ->``.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "examples"
SHOWN = "# ->"
NAMES = ("quick_tour.py", "own_data_and_method.py")


def cells(text: str) -> list[tuple[str, list[str]]]:
    """Return each cell without its output, and its output."""
    found: list[tuple[list[str], list[str]]] = [([], [])]
    for line in text.splitlines():
        if line.startswith("# %%"):
            found.append(([], []))
        code, output = found[-1]
        if line.startswith(SHOWN):
            output.append(line.removeprefix(SHOWN).removeprefix(" "))
        else:
            code.append(line)
    return [("\n".join(code) + "\n", output) for code, output in found if code or output]


def executed(path: Path) -> list[tuple[str, list[str]]]:
    """Run the cells in the current folder; return each with what it printed."""
    done, names = [], {"__name__": "__main__", "__file__": str(path)}
    for code, _ in cells(path.read_text(encoding="utf-8")):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, str(path), "exec", dont_inherit=True), names)
        done.append((code, [line.rstrip() for line in said.getvalue().splitlines()]))
    return done


def rewritten(path: Path) -> str:
    """Return the script with fresh output."""
    parts = []
    for code, output in executed(path):
        body = code.rstrip("\n")
        shown = [f"{SHOWN} {line}".rstrip() for line in output]
        parts.append("\n".join([body, *shown]) + code[len(body) :])
    return "".join(parts).rstrip("\n") + "\n"


def main() -> None:
    """Rewrite the examples."""
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            text = rewritten(FOLDER / name)
            os.chdir("/")
        (FOLDER / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"ran {name}\n")


if __name__ == "__main__":
    main()

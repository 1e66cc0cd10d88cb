"""Memory (proportional set size) and CPU time of a process and its descendants, from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
SHARE = 0.02
"""Largest share of time spent sampling, so that the measured side is hardly disturbed."""
SHORTEST_PAUSE_S = 0.2


def tree_pss(root: int) -> int:
    """Return the PSS in bytes of ``root`` and its descendants; 0 when it has ended."""
    return sum(_pss(pid) for pid in descendants(root))


def tree_cpu_s(root: int) -> float:
    """Return the CPU seconds of ``root`` and its living descendants."""
    fields = [_stat(PROC / str(pid)) for pid in descendants(root)]
    ticks = sum(int(f[11]) + int(f[12]) for f in fields if f)
    return ticks / os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """Return ``root`` and every living process below it."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in PROC.iterdir():
        if path.name.isdigit():
            children[_parent(path)].append(int(path.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children[pid]
    return found


class TreeMemory:
    """Samples the PSS of a process tree from a thread while the ``with`` block runs."""

    def __init__(self, root: int) -> None:
        self.peak = 0
        self._root = root
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> TreeMemory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        wrong: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def sample(self) -> int:
        """Return the PSS now, and keep it when it is the largest so far."""
        found = tree_pss(self._root)
        self.peak = max(self.peak, found)
        return found

    def _watch(self) -> None:
        pause = 0.0
        while not self._end.wait(pause):
            started = time.perf_counter()
            self.sample()
            pause = max(SHORTEST_PAUSE_S, (time.perf_counter() - started) / SHARE)


def _parent(process: Path) -> int:
    fields = _stat(process)
    return int(fields[1]) if fields else -1


def _stat(process: Path) -> list[str]:
    """Return what follows the name in a process's stat file; nothing when it has ended."""
    try:
        stat = (process / "stat").read_text(errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # a name may hold spaces and parentheses


def _pss(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

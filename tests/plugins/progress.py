"""Pytest plugin of tools/test: a line every 30 s that says how far the tests are.

Works with and without the workers of pytest-xdist, and where standard output is no terminal.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

EVERY_S = float(os.environ.get("RAYSIM_TEST_PROGRESS_S", "30"))
OUT = os.dup(1)
"""Standard output as it was before pytest captured it."""


@pytest.hookimpl(trylast=True)  # after the reporter that it prints with
def pytest_configure(config: pytest.Config) -> None:
    """Watch in the process that prints, not in the workers of pytest-xdist."""
    if config.pluginmanager.has_plugin("terminalreporter") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(config), "raysim_progress")


class Progress:
    """Counts finished tests and knows what each worker runs now."""

    def __init__(self, config: pytest.Config) -> None:
        self._is_quiet = config.get_verbosity() <= 0
        self._began = time.monotonic()
        self._running: dict[str, float] = {}
        self._total = self._done = self._failed = 0
        self._end = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def pytest_sessionstart(self) -> None:
        self._ticker.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        self._total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._done += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._say(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Iterator[None]:
        """Print no letter for each test: the lines say more."""
        status = yield
        return (status[0], "", status[2]) if self._is_quiet else status

    def pytest_sessionfinish(self) -> None:
        self._end.set()

    def _tick(self) -> None:
        while not self._end.wait(EVERY_S):
            self._say(self._line())

    def _line(self) -> str:
        now = time.monotonic()
        minutes, seconds = divmod(int(now - self._began), 60)
        running = [f"{test} ({now - since:.0f} s)" for test, since in [*self._running.items()]]
        return (
            f"{self._done} of {self._total or '?'} tests done, {self._failed} failed, "
            f"{minutes} min {seconds} s; now: {', '.join(running) or 'no test'}"
        )

    @staticmethod
    def _say(text: str) -> None:
        os.write(OUT, f"test: {text}\n".encode())

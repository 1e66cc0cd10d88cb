"""Pytest plugin of tools/test --all: a skipped cluster or browser test counts as failed.

Acts only under ``RAYSIM_REQUIRE_ALL=1``. A long suite that skips its long part would look green.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

REQUIRED = ("cluster", "browser")


def _is_on() -> bool:
    return os.environ.get("RAYSIM_REQUIRE_ALL") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn the skip of a required test into a failure that keeps the reason."""
    report = yield
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if _is_on() and is_skip and any(item.get_closest_marker(name) for name in REQUIRED):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Do the same for a module that skips itself while it is imported, before it has marks."""
    report = yield
    if _is_on() and report.skipped and isinstance(collector, pytest.Module):
        marks = "|".join(REQUIRED)
        if re.search(rf"\bmark\.({marks})\b", collector.path.read_text(encoding="utf-8")):
            _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"RAYSIM_REQUIRE_ALL=1, but this test was skipped: {reason}"

"""Pytest plugin of tools/test --quick: a test that starts a process or Ray fails."""

from __future__ import annotations

import sys

import pytest

RUNS = {"run_tiny", "alone", "ray_session", "cli", "command", "on_terminal"}
"""Fixtures that train whole runs or start something."""
_is_testing = False


@pytest.hookimpl(tryfirst=True)  # before pytest itself takes what -m asks for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what uses these fixtures."""
    items[:] = [item for item in items if not RUNS & {*getattr(item, "fixturenames", ())}]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> object:
    """Say when a test runs: pytest-xdist starts processes, too."""
    global _is_testing
    _is_testing = True
    done = yield
    _is_testing = False
    return done


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    starts = event in ("subprocess.Popen", "os.fork", "os.posix_spawn")
    if _is_testing and starts and arguments[:1] != ("lscpu",):  # joblib counts the cores
        pytest.fail(f"a test of tools/test --quick started a process {arguments}; mark it process")


sys.addaudithook(_refuse)

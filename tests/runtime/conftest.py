"""What the tests of the coordinator compare with."""

from __future__ import annotations

import pytest
from coordinated import Run


@pytest.fixture
def unbroken(tmp_path):
    run = Run(tmp_path / "unbroken")
    return run.outcome(run())


@pytest.fixture(scope="module")
def registered():
    """Return a function that gives a class a name, for the tests of one module only."""
    with pytest.MonkeyPatch.context() as patch:

        def add(registry, name, cls):
            registry.names()  # what is ours comes first
            patch.setitem(registry._classes, name, cls)
            cls.choice_name = name

        yield add

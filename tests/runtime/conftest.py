"""What the tests of the coordinator compare with."""

from __future__ import annotations

import pytest
from coordinated import Run


@pytest.fixture
def unbroken(tmp_path):
    run = Run(tmp_path / "unbroken")
    return run.outcome(run())

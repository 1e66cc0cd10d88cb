"""What the tests of studies' verbs share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs ``raysim VERB ...`` in a folder: (exit code, output, errors)."""
    from raysim.cli.main import main

    def call(verb: str, folder: Path, *arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        logging.getLogger("raysim").handlers.clear()  # they hold the standard error of an old call
        with pytest.raises(SystemExit) as left:
            main([verb, *map(str, arguments)])
        logging.getLogger("raysim").handlers.clear()
        logging.captureWarnings(False)
        return int(left.value.code or 0), *capsys.readouterr()

    return call

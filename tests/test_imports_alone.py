"""Every module can be imported first: it imports what it needs, and no ring is in the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALONE = """
import importlib, json, os, sys
for name in ("numpy", "scipy", "torch", "sklearn", "ray", "pydantic", "yaml", "click", "rich"):
    importlib.import_module(name)  # once for all: what is theirs is not what is tested
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
        except BaseException as wrong:
            print(f"{name}: {type(wrong).__name__}: {wrong}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(json.dumps(failed))
"""


@pytest.mark.slow  # 250 modules in a process each
def test_every_module_can_be_imported_first():
    paths = sorted((ROOT / "raysim").rglob("*.py"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    names = [".".join(p).removesuffix(".__init__") for p in parts if p[-1] != "__main__"]
    assert "raysim.data.noise" in names
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *names], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout.splitlines()[-1]) == [], done.stderr

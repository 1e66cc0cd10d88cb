"""The example scripts run as they are and print what they say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "run_examples.py"
SCRIPT = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("tool", sys.argv[1])
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
print(json.dumps(tool.executed(tool.FOLDER / sys.argv[2])))
"""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def tool():
    spec = importlib.util.spec_from_file_location("run_examples", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words_and_numbers(lines: list[str]) -> tuple[list[list[str]], list[float]]:
    text = [" ".join(line.split()) for line in lines]
    return [NUMBER.split(line) for line in text], [
        float(n) for n in NUMBER.findall("\n".join(text))
    ]


@pytest.mark.parametrize("name", tool().NAMES)
def test_an_example_runs_and_prints_what_it_shows(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(TOOL), name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = tool().cells((ROOT / "configs" / "examples" / name).read_text(encoding="utf-8"))
    printed = json.loads(done.stdout.splitlines()[-1])

    assert len(printed) == len(shown)
    for (_, new), (code, old) in zip(printed, shown, strict=True):
        words, numbers = words_and_numbers(old)
        new_words, new_numbers = words_and_numbers(new)
        assert new_words == words, code
        # Another processor may end in other last bits: a few test images more or less.
        assert new_numbers == pytest.approx(numbers, abs=0.03), code
    assert sum(len(output) for _, output in shown) > 10


@pytest.mark.parametrize("name", tool().NAMES)
def test_an_example_shows_no_path_of_a_machine(name):
    text = (ROOT / "configs" / "examples" / name).read_text(encoding="utf-8")

    assert not re.search(r"/(home|root|work|tmp|Users)/", text)

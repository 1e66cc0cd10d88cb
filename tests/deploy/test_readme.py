"""deploy/README.md: its commands name files, settings and flags that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy/README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
SCRIPT = "\n".join(BLOCKS).replace("\\\n", " ")
CALLS = [line.strip().partition("#")[0] for line in SCRIPT.splitlines() if " raysim " in f" {line}"]
RAYSIM = [call for call in CALLS if call.startswith("raysim ")]


def test_every_block_is_readable_for_bash():
    assert len(BLOCKS) >= 8
    for block in BLOCKS:
        subprocess.run([shutil.which("bash") or "bash", "-n", "-c", block], check=True)


def test_files_of_deploy_exist_and_all_are_mentioned():
    named = set(re.findall(r"deploy/([\w.-]+\w)", TEXT))

    assert all((ROOT / "deploy" / name).is_file() for name in named)
    for path in (ROOT / "deploy").iterdir():
        assert path.name in TEXT or path.name == "README.md"


@pytest.mark.parametrize("call", RAYSIM)
def test_raysim_knows_the_verb_and_its_arguments(call):
    from raysim.cli.main import cli

    _, verb, *arguments = shlex.split(call)

    context = click.Context(cli)
    command = cli.get_command(context, verb)
    assert command is not None
    command.make_context(verb, arguments)  # parses, does not run


def test_settings_of_the_submitted_job_are_accepted():
    from raysim.config import load_config

    (submit,) = [call for call in RAYSIM if " submit " in call]
    words = shlex.split(submit.replace("$method", "single"))[2:]
    overrides = [word for word in words if "=" in word]

    config = load_config(words[0], overrides)

    assert config.runtime.per_actor.gpus == 0.25


def test_arithmetic_of_the_cost_is_right():
    (terms,) = re.findall(
        r"workers are (.+) = ([\d.]+) \+ ([\d.]+) = ([\d.]+)\.", TEXT.replace("\n", " ")
    )
    formula, machines, disks, total = terms
    first, second = formula.replace(" x ", " * ").split(") + ")

    assert eval(first + ")") == pytest.approx(float(machines), abs=0.005)
    assert eval(second) == pytest.approx(float(disks), abs=0.005)
    assert float(machines) + float(disks) == pytest.approx(float(total))

"""The scripts of tools/, without a second 5 GB install: Python and pip are played by a stub."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("tools/setup.sh", "tools/demo", "tools/test", ".ci/run")
BASH = shutil.which("bash") or "bash"
SHOWN = "-p progress --durations=15 -n 2 --dist loadfile --no-loadscope-reorder"
"""How tools/test shares and shows the tests."""

STUB = """#!{bash}
# Plays python: venv and pip only leave traces, anything else is real.
case "$*" in
  "-m venv "*)
    echo venv >>"{calls}"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip install "*)
    echo "pip ${{*:4}}" >>"{calls}"; echo "pip said so"; exit "${{PIP_EXIT:-0}}" ;;
  "-m pip --version") ;;
  "-m ruff "*|"-m mypy"*)
    echo "$2" >>"{calls}"; exit "${{LINT_EXIT:-0}}" ;;
  "-m pytest "*)
    echo "pytest ${{RAYSIM_REQUIRE_ALL:-short}} ${{*:3}}" >>"{calls}"; exit "${{PYTEST_EXIT:-0}}" ;;
  *torch.cuda*) exit 1 ;;
  *torchvision*)
    echo check >>"{calls}"; exit "${{CHECK_EXIT:-0}}" ;;
  *)
    exec "{python}" "$@" ;;
esac
"""


class Checkout:
    """A copy of what setup.sh reads, and a stub python."""

    def __init__(self, folder: Path) -> None:
        self.root, self._calls = folder / "clone", folder / "calls"
        self.venv = self.root / ".venv"
        (self.root / "tools").mkdir(parents=True)
        for name in ("pyproject.toml", "tools/setup.sh", "tools/constraints.txt", "tools/test"):
            shutil.copy(ROOT / name, self.root / name)
        self.python = folder / "python3"
        self.python.write_text(STUB.format(bash=BASH, calls=self._calls, python=sys.executable))
        self.python.chmod(0o755)

    def run(
        self, name: str, *arguments: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "RAYSIM_PYTHON": str(self.python), **environment}
        variables.pop("RAYSIM_REQUIRE_ALL", None)  # set when this test is part of --all
        command = [str(self.root / "tools" / name), *arguments]
        return subprocess.run(
            command, env=variables, cwd="/", capture_output=True, text=True, check=False
        )

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("setup.sh", **environment)

    def lines(self) -> list[str]:
        """What the stub was asked for since the last question."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return lines

    def calls(self) -> list[str]:
        """Return only the first word of each."""
        return [line.split()[0] for line in self.lines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_executable_and_readable_for_bash(name):
    script = ROOT / name

    assert os.access(script, os.X_OK)
    subprocess.run([BASH, "-n", str(script)], check=True)
    assert "set -euo pipefail" in script.read_text()


def test_second_set_up_installs_nothing(checkout):
    first = checkout.set_up()
    assert first.returncode == 0, first.stdout + first.stderr
    assert checkout.calls() == ["venv", "pip", "check"]

    second = checkout.set_up()

    assert second.returncode == 0
    assert "ready" in second.stdout
    assert checkout.calls() == []


@pytest.mark.parametrize("name", ["pyproject.toml", "tools/constraints.txt"])
def test_changed_requirements_install_again_into_the_same_venv(checkout, name):
    checkout.set_up()
    checkout.calls()
    with (checkout.root / name).open("a") as file:
        file.write("\n# changed\n")

    assert checkout.set_up().returncode == 0

    assert checkout.calls() == ["pip", "check"]


def test_failed_install_shows_pips_words_and_the_next_call_starts_anew(checkout):
    failed = checkout.set_up(PIP_EXIT="1")
    assert failed.returncode == 3
    assert "pip said so" in failed.stderr
    assert checkout.calls() == ["venv", "pip"]

    assert checkout.set_up().returncode == 0

    assert checkout.calls() == ["venv", "pip", "check"]


def test_packages_that_do_not_load_are_not_called_ready(checkout):
    assert checkout.set_up(CHECK_EXIT="1").returncode == 3
    checkout.calls()

    assert checkout.set_up().returncode == 0

    assert checkout.calls() == ["venv", "pip", "check"]


def test_half_made_venv_is_completed(checkout):
    (checkout.venv / "bin").mkdir(parents=True)
    (checkout.venv / "bin" / "python").symlink_to("/nonexistent/python")

    assert checkout.set_up().returncode == 0

    assert checkout.calls() == ["venv", "pip", "check"]


def test_old_python_is_refused_with_what_was_found_and_what_to_do(checkout, tmp_path):
    old = tmp_path / "old-python"
    old.write_text(f'#!{BASH}\n[[ "$1" == --version ]] && echo "Python 3.9.1"; exit 1\n')
    old.chmod(0o755)

    refused = checkout.set_up(RAYSIM_PYTHON=str(old))

    assert refused.returncode == 3
    for part in ("3.11 or newer", "Python 3.9.1", "RAYSIM_PYTHON="):
        assert part in refused.stderr
    assert not checkout.venv.exists()


def test_short_suite_leaves_the_long_part_out_and_returns_pytests_code(checkout):
    checkout.set_up()
    checkout.lines()

    done = checkout.run("test", "tests/core", "-k", "some thing", PYTEST_EXIT="5")

    *linters, pytest_line = checkout.lines()
    assert linters == ["ruff", "ruff", "mypy"]
    assert pytest_line.startswith(f"pytest short -p require_all {SHOWN} ")
    assert "-m not slow and not cluster and not gpu tests/core -k some thing" in pytest_line
    assert done.returncode == 5
    assert "in all" in done.stdout


def test_long_suite_requires_everything_but_a_gpu(checkout, tmp_path):
    checkout.set_up()
    checkout.lines()
    needed = re.search(r"^needed=\((.*)\)$", (ROOT / "tools/test").read_text(), re.MULTILINE)[1]
    commands = [pair.split(":")[0] for pair in needed.split()]
    for name in [*commands, "apt-get"]:  # present, so that nothing is installed on this machine
        (tmp_path / name).write_text(f"#!{BASH}\ntouch {tmp_path}/called-{name}\n")
        (tmp_path / name).chmod(0o755)

    done = checkout.run("test", "--all", PATH=f"{tmp_path}:{os.environ['PATH']}")

    alone = SHOWN.replace("-n 2", "-n 0")
    assert checkout.lines()[-2:] == [
        f"pytest 1 -p require_all {SHOWN} -m not cluster and not gpu",
        f"pytest 1 -p require_all {alone} -m cluster and not gpu",
    ]
    assert done.returncode == 0
    assert "sshd" in commands
    assert not (tmp_path / "called-apt-get").exists()


def test_long_suite_fails_if_either_part_fails(checkout):
    checkout.set_up()

    assert checkout.run("test", "--all", PYTEST_EXIT="1").returncode == 1
    assert checkout.run("test", "--all", PYTEST_EXIT="5").returncode == 5  # nothing was selected


def test_quick_suite_runs_pure_tests_without_linters(checkout):
    checkout.set_up()
    checkout.lines()

    assert checkout.run("test", "--quick", "-k", "some thing").returncode == 0

    (line,) = checkout.lines()
    left_out = "not (slow or cluster or gpu or ray or process or browser or data)"
    assert line.startswith(f"pytest short -p require_all {SHOWN} -m {left_out} -p quick ")
    *paths, flag, words = line.partition("-p quick ")[2].partition(" -k ")
    assert (flag, words) == (" -k ", "some thing")
    assert all((ROOT / path).exists() for path in paths[0].split())


def test_a_linters_complaint_stops_the_suite(checkout):
    checkout.set_up()
    checkout.lines()

    assert checkout.run("test", LINT_EXIT="1").returncode == 1
    assert checkout.calls() == ["ruff"]


def test_constraints_pin_every_direct_dependency_and_name_no_host():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["lite0"]]
    lines = (ROOT / "tools/constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert all(re.fullmatch(r"[A-Za-z0-9-]+==[0-9.]+", pin) for pin in pins)
    names = {pin.split("==")[0].lower() for pin in pins}
    assert {re.match(r"[A-Za-z0-9-]+", one).group().lower() for one in wanted} <= names


SKIPS = """
import pytest

@pytest.mark.cluster
def test_needs_a_cluster():
    pytest.skip("no second host here")

@pytest.mark.browser
@pytest.mark.skipif(True, reason="no browser here")
def test_needs_a_browser():
    pass

def test_may_be_skipped():
    pytest.skip("optional")

@pytest.mark.cluster
@pytest.mark.xfail
def test_known_to_fail():
    assert False
"""
SKIPPED_MODULE = """
import pytest
pytest.importorskip("no_such_package_at_all")
pytestmark = pytest.mark.cluster
"""


def run_pytest(folder: Path, source: str, *, require_all: bool) -> tuple[int, str]:
    (folder / "test_them.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  cluster\n  browser\n")
    variables = {k: v for k, v in os.environ.items() if k != "RAYSIM_REQUIRE_ALL"}
    variables["PYTHONPATH"] = str(ROOT / "tests" / "plugins")
    if require_all:
        variables["RAYSIM_REQUIRE_ALL"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "require_all", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_required_tests_that_skip_fail_and_say_why(tmp_path):
    code, said = run_pytest(tmp_path, SKIPS, require_all=True)

    assert code == 1
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in said  # a skipif mark acts before the call
    assert "no second host here" in said
    assert "no browser here" in said


def test_skips_stay_skips_without_require_all(tmp_path):
    code, said = run_pytest(tmp_path, SKIPS, require_all=False)

    assert code == 0
    assert "3 skipped, 1 xfailed" in said


def test_required_module_that_skips_itself_fails(tmp_path):
    assert "1 error" in run_pytest(tmp_path, SKIPPED_MODULE, require_all=True)[1]
    assert "1 skipped" in run_pytest(tmp_path, SKIPPED_MODULE, require_all=False)[1]

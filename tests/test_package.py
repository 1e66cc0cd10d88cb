"""What is shipped, and what a command loads before it has to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import raysim
from raysim.config.bundled import config_files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "raysim" / "docs"
INFO = f"raysim-{raysim.__version__}.dist-info"
HEAVY = ("ray", "torch", "torchvision", "sklearn", "scipy.cluster", "skimage", "PIL")
LISTS = ("methods", "datasets", "models", "features", "noise", "partitions", "configs")

PROBE = """
import json, sys
from raysim.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as leave:
    code = leave.code
print("\\n" + json.dumps({"code": code, "loaded": sorted(sys.modules)}))
"""


def run_and_look(*arguments: str) -> tuple[int, set[str], str]:
    """Exit code, loaded modules and output of a command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *said, last = done.stdout.splitlines()
    seen = json.loads(last)
    return seen["code"], set(seen["loaded"]), "\n".join(said) + done.stderr


def test_help_loads_nothing_heavy():
    code, loaded, said = run_and_look("--help")

    assert code == 0
    assert "Exit codes" in said
    assert loaded.isdisjoint({*HEAVY, "scipy", "pydantic", "numpy"})


@pytest.mark.parametrize("kind", LISTS)
def test_lists_load_nothing_heavy(kind):
    code, loaded, said = run_and_look("ls", kind)

    assert code == 0
    assert said.strip()
    assert loaded.isdisjoint(HEAVY)


def test_config_error_loads_nothing_heavy():
    code, loaded, said = run_and_look("run", "quickstart", "data.noise.rte=1")

    assert code == 2
    assert "data.noise.rte is not a setting; did you mean rate?" in said
    assert loaded.isdisjoint(HEAVY)


def test_probe_sees_what_a_command_loads(monkeypatch):
    # Without this the tests above would pass with a probe that looks at nothing.
    script = PROBE.replace("import json, sys", "import json, sys, sklearn", 1)
    monkeypatch.setitem(globals(), "PROBE", script)

    assert "sklearn" in run_and_look("--help")[1]


def test_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert raysim.__version__ == project["version"] == str(citation["version"])
    assert citation["license"] == project["license"]


def wheel_of(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_wheel_holds_types_configs_and_docs_and_no_tests_results_or_pictures(tmp_path):
    names = zipfile.ZipFile(wheel_of(tmp_path)).namelist()

    assert {"raysim/py.typed", "raysim/configs/quickstart.yaml", "raysim/cli/main.py"} <= {*names}
    papers = ROOT.glob("raysim/studies/reproduce/papers/*.yaml")
    assert {path.relative_to(ROOT).as_posix() for path in papers} < {*names}
    tops = {name.split("/")[0] for name in names}
    assert tops == {"raysim", INFO}
    assert any(name.endswith("/LICENSE") for name in names)
    inside = {name.removeprefix("raysim/configs/") for name in names if "/configs/" in name}
    assert inside == {path.relative_to(ROOT / "configs").as_posix() for path in config_files()}
    docs = {f"raysim/docs/{page.relative_to(DOCS).as_posix()}" for page in DOCS.rglob("*.md")}
    assert {name for name in names if name.startswith("raysim/docs/")} == docs


@pytest.mark.slow
def test_a_package_index_shows_authors_and_links_that_open(tmp_path):
    metadata = zipfile.ZipFile(wheel_of(tmp_path)).read(f"{INFO}/METADATA").decode()

    assert "\nAuthor: The raysim developers\n" in metadata
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert "# raysim\n" in metadata
    assert re.findall(r"\]\((?!https?://)", metadata) == []  # no link into the repository


def test_readme_example_prints_what_its_comments_say():
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").split("```python\n")[1:]
    (example,) = [b.split("```")[0] for b in blocks if "similarity_matrix" in b]

    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)

    wanted = [line.rsplit("  # ")[-1] for line in example.splitlines() if line.startswith("print")]
    assert done.stdout.splitlines() == wanted, done.stderr

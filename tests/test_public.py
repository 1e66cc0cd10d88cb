"""What ``import raysim`` shows: it is there, it works, and the page of the interface has it."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import raysim
from raysim.errors import ConfigError, OutputError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "raysim" / "docs" / "api.md"
EXAMPLES = sorted((ROOT / "configs" / "examples").glob("*.py"))
SMALL = (
    "data.partition={kind: tasks, clients: 6, groups: 2}",
    *("train.rounds=1", "train.epochs=1", "runtime.kind=local"),
)


def allowed() -> dict[str, set[str]]:
    """Names by module that the page lets a user's own method import."""
    part = PAGE.read_text("utf-8").split("## What a method of your own may import")[1]
    rows = re.findall(r"^\| `(raysim[\w.]*)` \| (.+) \|$", part.split("\n## ")[0], re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


# ---- what is shown -----------------------------------------------------------------------------


def test_dir_shows_the_public_names_and_each_of_them_is_there():
    assert set(dir(raysim)) == {*raysim.__all__, "__version__"}
    assert all(getattr(raysim, name) is not None for name in raysim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        raysim.nothing  # noqa: B018


def test_looking_loads_nothing_heavy():
    code = "import sys, raysim; dir(raysim); raysim.load_config; raysim.run; raysim.METHODS.names()"
    heavy = "[m for m in ('ray', 'torch', 'sklearn', 'scipy.cluster') if m in sys.modules]"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print({heavy})"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "[]"


def test_the_page_describes_every_public_name():
    text = PAGE.read_text("utf-8")

    missing = [name for name in raysim.__all__ if not re.search(rf"`{name}\b", text)]
    assert missing == []


def test_what_the_page_lets_methods_import_is_there():
    modules = allowed()

    assert modules
    for module, names in modules.items():
        assert [n for n in names if not hasattr(importlib.import_module(module), n)] == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_import_only_what_the_page_allows(path):
    modules = {**allowed(), "raysim": set(raysim.__all__)}
    private = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            private += [a.name for a in node.names if a.name.startswith("raysim.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "raysim":
            names = {alias.name for alias in node.names}
            private += [f"{node.module}.{n}" for n in names - modules.get(str(node.module), set())]

    assert private == []


def test_the_code_of_the_page_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs, arrays = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    for code in (runs, arrays):
        exec(compile(code, str(PAGE), "exec"), {})

    *_, groups, share = capsys.readouterr().out.splitlines()
    assert [groups, share] == re.findall(r"# (\[0 1.*|1\.0)$", arrays, re.MULTILINE)


# ---- runs --------------------------------------------------------------------------------------


def test_run_takes_a_name_or_a_config_and_overrides(tmp_path):
    first = raysim.run("quickstart", *SMALL, "method=single", f"output={tmp_path / 'a'}")
    config = raysim.load_config("quickstart", [*SMALL, f"output={tmp_path / 'b'}"])
    second = raysim.run(config, "method=single")

    assert first.summary["digest"] == second.summary["digest"]
    with pytest.raises(OutputError, match="finished run"):
        raysim.run(config, "method=single")
    assert raysim.run(config, "method=single", resume=True).accuracy == first.accuracy


def test_compare_runs_every_method_and_seed_on_the_same_data(tmp_path):
    where = f"output={tmp_path}/{{method}}/{{seed}}"
    fast = {"prox": ["train.lr=0.2"]}
    found = raysim.compare(
        "quickstart", ["single", "prox:single"], *SMALL, where, seeds=[0, 1], settings=fast
    )

    assert [(r.seed, Path(r.run_dir).parent.name) for r in found] == [
        (seed, label) for seed in (0, 1) for label in ("single", "prox")
    ]
    wrong = [run.artifact("confusion_given").tolist() for run in found]
    assert wrong[0] == wrong[1] != wrong[2] == wrong[3]
    assert list(found.summary_frame()["accuracy"]) == [run.accuracy for run in found]


def test_compare_refuses_an_unknown_method_before_the_first_run(tmp_path):
    with pytest.raises(ConfigError, match=r"singel.*did you mean single"):
        raysim.compare("quickstart", ["single", "singel"], *SMALL, f"output={tmp_path}/{{method}}")

    assert list(tmp_path.iterdir()) == []


# ---- arrays ------------------------------------------------------------------------------------


def test_clients_with_equal_features_are_alike_and_grouped():
    rng = np.random.default_rng(0)
    axes = [np.diag(np.linspace(3, 0.5, 6)), np.diag(np.linspace(0.5, 3, 6))]
    features = [rng.normal(size=(200, 6)) @ axes[k % 2] for k in range(4)]

    spectra = raysim.spectra(features, rank=3)
    alike = raysim.similarity(spectra)

    assert [spectrum.rank for spectrum in spectra] == [3] * 4
    assert alike.shape == (4, 4)
    assert alike[0, 2] > alike[0, 1]
    assert raysim.cluster(alike, 2).tolist() == [0, 1, 0, 1]


def test_wrong_labels_are_repaired_by_clean_subspaces():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = rng.normal(size=(60, 6)) * 0.01 + 2 * np.eye(6)[labels]
    wrong = (labels + 1) % 3  # every class has another one's name

    clean = raysim.class_subspaces(features, labels, rank=1)

    assert (raysim.relabel(features, wrong, clean).labels == labels).all()

"""Imports point one way (ARCHITECTURE.md); read from the syntax trees, so lazy ones count too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "raysim"
WAIST = {"protocols", "settings", "errors", "seeding"}
MAY_IMPORT = {
    "core": {"core"},
    "data": {"data", "core"} | WAIST,
    "models": {"models", "core"} | WAIST,
    "steps": {"steps", "models", "core"} | WAIST,
    "methods": {"methods", "steps", "models", "core"} | WAIST,
    "runtime": {"runtime", "core"} | WAIST,
    "report": {"report", "core", "errors", "runtime"},
    "errors": set(),
    "seeding": set(),
    "protocols": set(),
    "settings": {"errors"},
    "bundled": {"errors", "settings"},
    "plugins": {"errors", "settings"},
    "processes": {"errors"},
    "environment": set(),
    "record_facts": set(),
    "feature_clusters": {"core", "data", "steps", "report", "runtime"} | WAIST,
    "frames": {"errors"},
    "results": {"errors", "frames", "model_files", "report", "runtime"},
    "rounds": {"models", "results", "runtime"} | WAIST,
    "trackers": {"trackers", "runtime"} | WAIST,
    "evaluator": {"core"} | WAIST,
    "context": {"data", "evaluator", "runtime"} | WAIST,
}
"""Parts of raysim that each part may import; those not named here (config, experiment, cli) are
the ones that put the others together."""
MAY_IMPORT_CONFIG = {
    "assignment",
    "compare",
    "config",
    "experiment",
    "model_files",
    "scaling",
    "reproduce",
    "cli",
    "__init__",
}


def imported(path: Path) -> set[str]:
    """Full names of every module and name a file imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(path: Path) -> str:
    """Return the first folder below raysim, or the module itself."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def parts_imported(path: Path) -> set[str]:
    return {n.split(".")[1] for n in imported(path) if n.startswith("raysim.")}


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_part_imports_only_what_lies_below_it(part):
    files = [path for path in FILES if part_of(path) == part]
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(extra)
        for path in files
        if (extra := parts_imported(path) - MAY_IMPORT[part] - {"__version__"})
    }

    assert files, f"raysim/{part} is gone; correct MAY_IMPORT"
    assert wrong == {}


def test_ray_is_imported_in_its_folder_only():
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in FILES
        if PACKAGE / "runtime" / "ray" not in path.parents
        and any(name == "ray" or name.startswith("ray.") for name in imported(path))
    ]

    assert wrong == []


def test_config_is_imported_only_by_what_assembles_a_run():
    importers = {part_of(path) for path in FILES if "config" in parts_imported(path)}

    assert importers <= MAY_IMPORT_CONFIG


def test_every_part_has_a_rule():
    composing = MAY_IMPORT_CONFIG | {"__main__"}

    assert {part_of(path) for path in FILES} == MAY_IMPORT.keys() | composing


def test_lazy_and_aliased_imports_are_seen(tmp_path):
    file = tmp_path / "lazy.py"
    file.write_text("def f():\n    import ray.util as r\n    from raysim import methods\n")

    assert imported(file) == {"ray.util", "raysim.methods"}

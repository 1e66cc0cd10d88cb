"""Imports point one way (raysim/README.md); read from the syntax trees, so lazy ones count too."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "raysim"
WAIST = {"protocols", "settings", "errors", "seeding"}
ASSEMBLING = {"config", "core", "data", "methods", "models", "steps"}
MAY_IMPORT = {
    "protocols": set(),
    "settings": {"errors"},
    "errors": {"protocols"},
    "seeding": set(),
    "core": set(),
    "data": {"core", "storage"} | WAIST,
    "models": {"core", "storage"} | WAIST,
    "steps": {"models", "core"} | WAIST,
    "methods": {"steps", "models", "core", "storage"} | WAIST,
    "storage": WAIST,
    "config": {"data", "methods", "models", "steps", "storage"} | WAIST,
    "runs": {"config", "data", "models", "storage", "__version__", "write_report"} | WAIST,
    "runtime": {"core", "runs", "storage"} | WAIST,
    "trackers": {"runs", "runtime"} | WAIST,
    "report": {"core", "runs", "storage", "__version__"} | WAIST,
    "experiment": ASSEMBLING | {"runs", "runtime", "storage", "trackers"} | WAIST,
    "standalone": {"core", "data", "report", "runs", "steps", "storage", "__version__"} | WAIST,
    "studies": ASSEMBLING
    | {"experiment", "report", "runs", "runtime", "storage", "__version__"}
    | WAIST,
}
"""Rooms of raysim, and those each of them may import; ``cli`` may import all."""
FREE = {"cli", "__init__", "__main__"}


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
        if (extra := parts_imported(path) - MAY_IMPORT[part] - {part})
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


def test_every_part_has_a_rule():
    assert {part_of(path) for path in FILES} == MAY_IMPORT.keys() | FREE


def test_no_ring_of_rooms():
    assert in_a_ring(MAY_IMPORT) == {}


def test_no_ring_of_modules():
    assert in_a_ring({module_of(path): top_level(path) for path in FILES}) == {}


def in_a_ring(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return who imports itself in the end, by whatever way, and those above them."""
    left = {name: wanted & below.keys() for name, wanted in below.items()}
    while ready := [name for name, wanted in left.items() if not wanted & left.keys()]:
        for name in ready:
            del left[name]
    return left


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    inside = path.relative_to(PACKAGE.parent).with_suffix("")
    return ".".join(part for part in inside.parts if part != "__init__")


def top_level(path: Path) -> set[str]:
    """Full names of the modules, and of the modules' names, that importing a file imports."""
    nodes = [n for n in ast.parse(path.read_text(encoding="utf-8")).body]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found - {module_of(path)}


def test_lazy_and_aliased_imports_are_seen(tmp_path):
    file = tmp_path / "lazy.py"
    file.write_text("def f():\n    import ray.util as r\n    from raysim import methods\n")

    assert imported(file) == {"ray.util", "raysim.methods"}

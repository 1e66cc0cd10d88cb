"""CIFAR-10N and CIFAR-100N: what people said the training images of CIFAR show.

Wei et al., "Learning with noisy labels revisited", ICLR 2022; CC BY-NC 4.0. Read from
``cifar10n.npz`` and ``cifar100n.npz`` (`raysim data fetch`), or from the authors' own files. No
code in a file is run: of the authors' pickles only arrays are taken.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from raysim.errors import DataError
from raysim.storage.files import open_arrays

FILES = {
    "cifar10n": ("cifar10n.npz", "CIFAR-10_human.pt"),
    "cifar100n": ("cifar100n.npz", "CIFAR-100_human.pt"),
}
COLUMNS = {
    "cifar10n": {
        "aggre": "aggre_label",
        "random1": "random_label1",
        "random2": "random_label2",
        "random3": "random_label3",
        "worse": "worse_label",
    },
    "cifar100n": {"noisy": "noisy_label"},
}
"""Where the labels of a variant are; the true ones are ``clean_label``."""


def find_human_labels(name: str, folder: Path) -> Path | None:
    """Return the file of ``name`` (cifar10n, cifar100n) in ``folder``, if there is one."""
    return next((folder / file for file in FILES[name] if (folder / file).is_file()), None)


def read_human_labels(path: Path) -> dict[str, np.ndarray]:
    """Return the label columns of a file, each (50,000,) int64, in the original order."""
    try:
        if path.suffix == ".npz":
            with open_arrays(path, str) as file:
                columns = {key: file[key] for key in file.files}
        else:  # the dictionary of a torch.save file, read without torch
            with zipfile.ZipFile(path) as archive:
                (member,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
                columns = dict(_ArraysOnly(io.BytesIO(archive.read(member))).load())
        return {key: np.asarray(column).astype(np.int64) for key, column in columns.items()}
    except Exception as error:  # a damaged pickle or archive may raise anything
        raise DataError(
            f"{path} must hold the label columns of CIFAR-N, got: {error}; remove it and run "
            "`raysim data fetch cifar10n cifar100n`"
        ) from error


class _ArraysOnly(pickle.Unpickler):
    """Reads NumPy arrays and refuses to look up anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the four names that a pickled array in protocol 2 needs."""
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if module.endswith("core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        raise pickle.UnpicklingError(f"{module}.{name}, which is no array")


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes that a pickle of protocol 2 keeps as text."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes kept as {encoding}, which is no array")
    return text.encode("latin1")

"""The idx files of MNIST and its relatives: a magic number, the dimensions, then bytes."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

from raysim.errors import DataError

_UNSIGNED_BYTE = 8


def find_idx(folder: Path, name: str) -> Path | None:
    """Return ``name`` in ``folder``, plain or else gzipped; None if neither is there."""
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def read_idx(path: Path) -> np.ndarray:
    """Return the uint8 array in an idx file, plain or gzipped."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}; fetch the file again") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE:
        raise DataError(
            f"{path} must start like an idx file of bytes (00 00 08), got {data[:4].hex(' ')!r}; "
            "fetch the file again"
        )
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"{path} must hold {math.prod(shape)} bytes for shape {shape}, "
            f"got {len(data) - start}; fetch the file again"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)

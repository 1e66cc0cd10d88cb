"""The array library of the spectra: CuPy on a GPU slice, NumPy or torch elsewhere."""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np

from raysim.core.threads import torch_device

Arrays = Literal["auto", "numpy", "torch", "cupy"]


def on_device(array: np.ndarray, arrays: Arrays) -> Any:
    """Return ``array`` in the library that ``arrays`` names.

    Auto is CuPy where a GPU is, else NumPy.
    """
    if arrays == "cupy" or (arrays == "auto" and _cupy_works()):
        import cupy

        return cupy.asarray(array)
    if arrays == "torch":
        import torch

        return torch.asarray(np.ascontiguousarray(array), device=torch_device())
    return array


def to_numpy(array: Any) -> np.ndarray:
    """Return ``array`` as NumPy, whatever library it comes from."""
    if hasattr(array, "get"):  # CuPy
        array = array.get()
    if hasattr(array, "cpu"):  # torch
        array = array.cpu()
    return np.asarray(array)


@functools.cache  # a failed import is searched for again every time: 0.3 ms
def _cupy_works() -> bool:
    # CuPy imports without a GPU too and fails at the first allocation, so ask it.
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.is_available())

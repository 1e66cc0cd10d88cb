"""Reference: the machine's float32 matrix product. Fixed, do not tune for raysim."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np


def numpy_rate(size: int, *, threads: int, times: int = 5) -> float:
    """Return FLOP/s, the median of ``times`` square products in NumPy."""
    from threadpoolctl import threadpool_limits

    a, b, out = _operands(size)
    with threadpool_limits(limits=threads):
        np.matmul(a, b, out=out)
        return _rate(lambda: np.matmul(a, b, out=out), size, times)


def torch_rate(size: int, *, threads: int, times: int = 5) -> float:
    """Return FLOP/s, the median of ``times`` square products in torch."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b, out = (torch.from_numpy(array) for array in _operands(size))
        torch.matmul(a, b, out=out)
        return _rate(lambda: torch.matmul(a, b, out=out), size, times)
    finally:
        torch.set_num_threads(before)


def _operands(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    return a, b, np.empty_like(a)


def _rate(product: Callable[[], Any], size: int, times: int) -> float:
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        product()
        seconds.append(time.perf_counter() - started)
    return 2.0 * size**3 / median(seconds)

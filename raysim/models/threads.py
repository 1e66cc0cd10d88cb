"""One thread for numeric libraries: their number decides the order of sums, and so the bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with one torch, BLAS and OpenMP thread, and restore the numbers afterwards."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    if (
        before == 1
    ):  # pinned already, by the federation; looking for libraries again costs a millisecond
        yield
        return
    try:
        with threadpool_limits(limits=1):
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(before)


def torch_device() -> str:
    """Return "cuda" where this process sees a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"

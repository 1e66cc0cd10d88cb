"""Where and how torch computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from raysim.core import threads


def one_thread() -> AbstractContextManager[Any]:
    """Run a block with one thread in every numeric library, torch among them."""
    return threads.one_thread("torch")


def torch_device() -> str:
    """Return "cuda" where this process sees a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"

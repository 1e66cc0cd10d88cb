"""Where and how numeric libraries compute: in one thread, on a GPU where there is one.

One thread, because the number of threads decides the order of sums, and so the bits. The one place
that pins libraries: for actors, for runs in one process, for tools.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from typing import Any


def one_thread(*modules: str) -> AbstractContextManager[Any]:
    """Run a block with one thread in every numeric library that is loaded; restore the numbers.

    ``modules`` are imported first: what is loaded later would not be pinned.
    """
    for module in modules:
        importlib.import_module(module)
    stack = ExitStack()
    stack.enter_context(_libraries(len(sys.modules)).limit(limits=1))
    torch = sys.modules.get("torch")
    if torch is not None:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
    return stack


def torch_device() -> str:
    """Return "cuda" where this process sees a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=1)
def _libraries(num_modules: int) -> Any:
    """Find the loaded libraries (a millisecond); again only after something was imported."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()

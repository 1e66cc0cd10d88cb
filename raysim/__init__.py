"""Personalized federated learning under noisy labels, simulated on Ray actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.config import RunConfig, load_config
    from raysim.experiment import Experiment, RunResult

__version__ = "0.1.0"
__all__ = ["Experiment", "RunConfig", "RunResult", "load_config"]
_HOME = {"Experiment": "experiment", "RunResult": "experiment"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use: ``raysim --help`` must not load them."""
    if name not in __all__:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"raysim.{_HOME.get(name, 'config')}"), name)

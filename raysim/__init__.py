"""Personalized federated learning under noisy labels, simulated on Ray actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.config import RunConfig, load_config
    from raysim.experiment import Experiment
    from raysim.runs.results import Results, RunResult, load_result, load_results

__version__ = "0.1.0"
_CONFIG, _RESULTS = "raysim.config", "raysim.runs.results"
_HOME = {"Experiment": "raysim.experiment", "RunConfig": _CONFIG, "load_config": _CONFIG}
_HOME |= {"write_report": "raysim.report.writer"}
_HOME |= dict.fromkeys(("Results", "RunResult", "load_result", "load_results"), _RESULTS)
__all__ = ["Experiment", "Results", "RunConfig", "RunResult", "load_config", "load_result"]
__all__ += ["load_results"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use: ``raysim --help`` must not load them."""
    if name not in _HOME:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)

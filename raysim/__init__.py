"""Personalized federated learning under noisy labels, simulated on Ray actors.

What a user may use is listed here and described in ``raysim/docs/api.md``; the rest is private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.config import RunConfig, load_config
    from raysim.core.clustering import cluster
    from raysim.core.relabeling import class_subspaces, relabel
    from raysim.core.similarity import similarity_matrix as similarity
    from raysim.core.spectra import spectra
    from raysim.data.datasets import DATASETS
    from raysim.data.features import FEATURES
    from raysim.data.noise import NOISE
    from raysim.data.partition import PARTITIONS
    from raysim.experiment import Experiment, run
    from raysim.methods import METHODS
    from raysim.models.zoo import MODELS
    from raysim.report.writer import write_report
    from raysim.runs.results import Results, RunResult, load_result, load_results
    from raysim.studies.comparison import compare
    from raysim.studies.sweep import sweep

__version__ = "0.1.0"
_HOME = {
    "raysim.config": ("RunConfig", "load_config"),
    "raysim.core.clustering": ("cluster",),
    "raysim.core.relabeling": ("class_subspaces", "relabel"),
    "raysim.core.similarity": ("similarity",),
    "raysim.core.spectra": ("spectra",),
    "raysim.data.datasets": ("DATASETS",),
    "raysim.data.features": ("FEATURES",),
    "raysim.data.noise": ("NOISE",),
    "raysim.data.partition": ("PARTITIONS",),
    "raysim.experiment": ("Experiment", "run"),
    "raysim.methods": ("METHODS",),
    "raysim.models.zoo": ("MODELS",),
    "raysim.report.writer": ("write_report",),
    "raysim.runs.results": ("Results", "RunResult", "load_result", "load_results"),
    "raysim.studies.comparison": ("compare",),
    "raysim.studies.sweep": ("sweep",),
}
_OTHER_NAMES = {"similarity": "similarity_matrix"}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
# fmt: off
__all__ = [
    "DATASETS", "FEATURES", "METHODS", "MODELS", "NOISE", "PARTITIONS", "Experiment", "Results",
    "RunConfig", "RunResult", "class_subspaces", "cluster", "compare", "load_config", "load_result",
    "load_results", "relabel", "run", "similarity", "spectra", "sweep", "write_report",
]
# fmt: on


def __getattr__(name: str) -> Any:
    """Import a public name on first use: ``raysim --help`` must not load them."""
    if name not in _MODULE:
        raise AttributeError(f"module 'raysim' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULE[name]), _OTHER_NAMES.get(name, name))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""One run, from its config to its result."""

from raysim.experiment.experiment import Experiment, make_federation, preview, run

__all__ = ["Experiment", "make_federation", "preview", "run"]

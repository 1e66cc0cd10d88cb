"""One run, from its config to its result."""

from raysim.experiment.experiment import FREE_TO_CHANGE, Experiment, make_federation, preview

__all__ = ["FREE_TO_CHANGE", "Experiment", "make_federation", "preview"]

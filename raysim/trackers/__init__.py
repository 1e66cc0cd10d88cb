"""Records of a run, written for TensorBoard and MLflow (``track`` in the config)."""

from raysim.trackers.tracking import check_trackers, tracking

__all__ = ["check_trackers", "tracking"]

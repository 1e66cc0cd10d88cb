"""One run of a comparison in a process of its own (``processes``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.config import load_config
from raysim.studies.processes import Tell, tell_rounds, work


def run(job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Run or go on with the experiment; return its accuracy."""
    from raysim.experiment import Experiment

    experiment = Experiment(load_config(job["config"]))
    listeners = [tell_rounds(tell)]
    result = experiment.run(resume=job["resume"], force=job["force"], listeners=listeners)
    return {"accuracy": result.accuracy}


if __name__ == "__main__":
    work(run)

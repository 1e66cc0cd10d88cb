"""A run of MLflow, on the server of MLFLOW_TRACKING_URI or in ./mlruns.

The experiment is the run's name; parameters are its flat config. ``mlflow.json`` in the run
directory names the MLflow run, so that a resumed run goes on with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from raysim.errors import EnvironmentNotFit
from raysim.runs.folder import RunFolder
from raysim.trackers.tracker import Point, Tracker, first_line, not_installed

FILE = "mlflow.json"
FINISHED = "rounds_finished"
"""Metric that says how many rounds of the run MLflow has."""
STATUS = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
MOST = 100
"""Parameters in one request; MLflow takes no more."""
MOST_CHARACTERS = 500
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # its 7 with growing pauses would hold up rounds
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # a folder is all that works without a database package
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Set unless the user has."""


def _client() -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri())


def tracking_uri() -> str | None:
    """Return the store; None leaves it to MLflow, whose own default needs a database package."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given or importlib.util.find_spec("sqlalchemy") is not None:
        return given or None
    return "file:./mlruns"


class Mlflow(Tracker):
    """Metrics and parameters of one run."""

    name = "mlflow"
    _client: Any = None
    _id = ""
    _sent = 0

    @staticmethod
    def check(folder: RunFolder) -> None:
        try:
            _client().search_experiments(max_results=1)
        except ImportError as wrong:
            raise not_installed("mlflow", wrong) from wrong
        except Exception as wrong:  # of requests, of the store, of mlflow
            uri = os.environ.get("MLFLOW_TRACKING_URI") or "its default place"
            why = first_line(wrong) or type(wrong).__name__
            raise EnvironmentNotFit(
                f"track: mlflow cannot be used at {uri} ({why}); set MLFLOW_TRACKING_URI to a "
                "server or folder that is there, or leave mlflow out of track"
            ) from wrong

    def start(self, done: Sequence[Point]) -> None:
        """Make or take up the MLflow run and send the rounds it does not have."""
        self._client = _client()
        if not self._take_up():
            self._create()
        for point in done:
            self.log(point)

    def log(self, point: Point) -> None:
        """Send a round's numbers in one request; one it has already is left out."""
        from mlflow.entities import Metric

        if point.number <= self._sent:
            return
        now = int(1000 * time.time())
        values = {**point.values, FINISHED: float(point.number)}
        metrics = [Metric(key, value, now, point.step) for key, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)
        self._sent = point.number

    def end(self, outcome: str) -> None:
        if self._id:
            self._client.set_terminated(self._id, STATUS.get(outcome, "FAILED"))

    def _take_up(self) -> bool:
        """Continue the MLflow run that an earlier process left, if it is still there."""
        if not self._folder.storage.exists(FILE):
            return False
        with contextlib.suppress(Exception):  # deleted, or of another server: a new one will do
            known = json.loads(self._folder.storage.read(FILE))["run_id"]
            metrics = self._client.get_run(known).data.metrics
            self._client.update_run(known, status="RUNNING")
            self._id, self._sent = known, int(metrics.get(FINISHED, 0))
        return bool(self._id)

    def _create(self) -> None:
        from mlflow.entities import Param

        name = str(self._run["name"])
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        tags = {f"raysim.{key}": str(value) for key, value in self._run.items()}
        tags["raysim.run_dir"] = self._folder.root
        title = f"{self._run['method']}-seed{self._run['seed']}"
        self._id = self._client.create_run(experiment, tags=tags, run_name=title).info.run_id
        plain = [Param(k, str(v)[:MOST_CHARACTERS]) for k, v in self._parameters.items()]
        for start in range(0, len(plain), MOST):
            self._client.log_batch(self._id, params=plain[start : start + MOST])
        self._folder.write(FILE, {"experiment_id": experiment, "run_id": self._id})

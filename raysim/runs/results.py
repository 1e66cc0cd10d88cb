"""What runs left behind, for Python: values, arrays and pandas frames of run directories."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import DataError, EnvironmentNotFit
from raysim.runs.checksums import CHECKSUMS
from raysim.runs.folder import RunFolder, find_runs
from raysim.runs.record import RoundRecord, newest_known
from raysim.storage.objects import Place, absolute

if TYPE_CHECKING:
    import pandas as pd
    import torch

SHOWN = ("method", "dataset", "seed", "rounds", "accuracy", "ari", "noise_after", "finished")
"""Columns of the table that notebooks show."""
CLIENT_ARRAYS = {
    "client_noise_given": "noise_given",
    "client_noise_corrected": "noise_corrected",
    "client_f_score": "f_score",
    "client_f_score_judged": "f_score_judged",
}
"""Arrays of a run with a value per client, and their columns."""
Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run directory; ``summary`` is its result.json, empty while the run is not finished."""

    summary: Mapping[str, Any]
    run_dir: Place

    @cached_property
    def _folder(self) -> RunFolder:
        return RunFolder(absolute(self.run_dir))

    @property
    def accuracy(self) -> float:
        """Mean over clients of the accuracy on their own task: the last measured, NaN if none."""
        if self.summary:
            return float(self.summary["accuracy"]["mean"])
        return float((newest_known(self._records, "accuracy") or {"mean": math.nan})["mean"])

    @property
    def is_finished(self) -> bool:
        """Whether the run ended with a result."""
        return bool(self.summary)

    @property
    def is_verified(self) -> bool:
        """Whether the run has checksums, with which its files are compared when they are read."""
        return self._folder.storage.exists(CHECKSUMS)

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def dataset(self) -> str:
        return str(self.config["data"]["dataset"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The complete config as plain values; ``load_config`` takes them."""
        return self._folder.saved_config()

    @cached_property
    def environment(self) -> Mapping[str, Any]:
        """Versions, machine, actors and who took part."""
        return self._folder.read("environment.json")

    @cached_property
    def _records(self) -> list[RoundRecord]:
        return self._folder.records()

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One record per round, as in rounds.jsonl."""
        return [record.to_json() for record in self._records]

    @property
    def groups(self) -> dict[int, int]:
        """Group of every client, the newest; empty before clients are grouped."""
        return dict(enumerate(newest_known(self._records, "groups") or ()))

    @property
    def artifacts(self) -> list[str]:
        """Names of the arrays that ``artifact`` gives."""
        names = self._folder.storage.names("artifacts")
        return sorted(name.removesuffix(".npy") for name in names if name.endswith(".npy"))

    def artifact(self, name: str) -> np.ndarray:
        """Return an array of the run, such as "confusion_given"."""
        if name not in self.artifacts:
            known = ", ".join(self.artifacts) or "none"
            raise DataError(f"{self.run_dir} has no array {name!r}; ask for one of: {known}")
        return self._folder.array(name)

    @property
    def similarity(self) -> np.ndarray:
        """R, clients by clients, of a method that compares spectra."""
        return self.artifact("similarity")

    @property
    def model_names(self) -> list[str]:
        """Names of the models: group/0, group/1, ... or client/0, ..."""
        from raysim.runs.models import RunModels

        return list(RunModels(self._folder.path).names)

    def module(self, name: str) -> torch.nn.Module:
        """Return a model of the last commit as a network, ready to predict."""
        from raysim.runs.models import RunModels

        return RunModels(self._folder.path).load(name).build()

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per round, with name, method, dataset and seed in front."""
        return frame(self._round_rows())

    def clients_frame(self) -> pd.DataFrame:
        """Return one row per client: task, group, samples, accuracy, share of wrong labels."""
        return frame(self._client_rows())

    def report(self, out: str | Path = "report.html") -> list[Path]:
        """Write the report of this run; return its files."""
        return Results([self]).report(out)

    def _who(self) -> Row:
        return {
            "name": self.config["name"],
            "method": self.method,
            "dataset": self.dataset,
            "seed": self.config["seed"],
        }

    def _round_rows(self) -> list[Row]:
        """Return one row per round; ``step`` counts the rounds of all stages."""
        elapsed, rows = 0.0, []
        for step, record in enumerate(self._records, start=1):
            elapsed += record.seconds
            rows.append({**self._who(), "step": step, **record.flat(), "elapsed_s": elapsed})
        return rows

    def _client_rows(self) -> list[Row]:
        """Return one row per client; None where the run directory does not say."""
        facts, arrays = self.environment.get("federation", {}), self.artifacts
        columns: dict[str, Sequence[Any]] = {
            "task": facts.get("task_of", ()),
            "samples": facts.get("sizes", ()),
            "group": newest_known(self._records, "groups") or (),
            "accuracy": newest_known(self._records, "per_client") or (),
            **{
                column: self.artifact(name).tolist() if name in arrays else ()
                for name, column in CLIENT_ARRAYS.items()
            },
        }
        return [
            {
                **self._who(),
                "client": k,
                **{name: v[k] if k < len(v) else None for name, v in columns.items()},
            }
            for k in range(max(map(len, columns.values())))
        ]

    def _row(self) -> Row:
        """Return what the run comes to; of an unfinished one, what it came to so far."""
        records = self._records
        accuracy = newest_known(records, "accuracy") or {}
        labels = newest_known(records, "labels") or self.summary.get("labels") or {}
        return {
            **self._who(),
            "rounds": sum(record.stage != "group" and record.has("loss") for record in records),
            "accuracy": accuracy.get("mean"),
            "accuracy_std": accuracy.get("std"),
            "ari": newest_known(records, "ari"),
            "noise_before": labels.get("noise_before"),
            "noise_after": labels.get("noise_after"),
            "up_bytes": sum(record.bytes("up") for record in records),
            "down_bytes": sum(record.bytes("down") for record in records),
            "seconds": sum(record.seconds for record in records),
            "finished": self.is_finished,
            "run_dir": str(self.run_dir),
        }

    def __repr__(self) -> str:
        row = self._row()
        facts = [] if math.isnan(self.accuracy) else [f"accuracy {self.accuracy:.4f}"]
        facts += [f"ARI {row['ari']:.3f}"] if row["ari"] is not None else []
        facts += [f"{row['rounds']} rounds"] if self.is_finished else ["not finished"]
        who = f"{self.method} on {self.dataset}, seed {self.seed}"
        return f"RunResult({who}: {', '.join(facts)}; {self.run_dir})"

    def _repr_html_(self) -> str:
        return _table([self])


class Results(list[RunResult]):
    """Runs side by side."""

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per run and round, with name, method, dataset and seed in front."""
        return frame([row for run in self for row in run._round_rows()])

    def clients_frame(self) -> pd.DataFrame:
        """Return one row per run and client."""
        return frame([row for run in self for row in run._client_rows()])

    def summary_frame(self) -> pd.DataFrame:
        """Return one row per run."""
        return frame([run._row() for run in self])

    def report(self, out: str | Path = "report.html") -> list[Path]:
        """Write tables and figures of these runs, as ``raysim report`` does; return the files."""
        from raysim import write_report  # by its public name: reports read runs, not the reverse

        return list(write_report([absolute(run.run_dir) for run in self], out).files)

    def __repr__(self) -> str:
        return f"Results({super().__repr__()})"

    def _repr_html_(self) -> str:
        return _table(self)


def load_result(where: str | Path) -> RunResult:
    """Return the run in a run directory (a path or a URL), finished or not."""
    found = find_runs(str(where))
    if not found:
        raise DataError(f"no run directory at {where}; `raysim run` makes one")
    if len(found) > 1:
        raise DataError(
            f"{where} holds {len(found)} runs; name one of them, such as {found[0].root}, or use "
            "load_results"
        )
    return _loaded(found[0].root)


def load_results(*places: str | Path) -> Results:
    """Return every run in and below the places (default ``runs``), ordered by directory."""
    roots: dict[str, None] = {}
    for where in places or ("runs",):
        found = find_runs(str(where))
        if not found:
            raise DataError(f"no run directory at {where}; `raysim run` makes one")
        roots |= dict.fromkeys(storage.root for storage in found)
    return Results(_loaded(root) for root in sorted(roots))


def _loaded(root: str) -> RunResult:
    folder = RunFolder(root)
    return RunResult(folder.read("result.json") if folder.is_finished else {}, folder.path)


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a pandas frame; columns in the order in which rows first have them."""
    try:
        import pandas as pd
    except ImportError as wrong:
        raise EnvironmentNotFit(
            "frames need pandas, which is not installed; pip install 'raysim[pandas]'"
        ) from wrong
    return pd.DataFrame(list(rows), columns=list(dict.fromkeys(name for r in rows for name in r)))


def _table(runs: Iterable[RunResult]) -> str:
    """Return an HTML table for notebooks."""
    head = "".join(f"<th>{name}</th>" for name in SHOWN)
    rows = [[_cell(run._row()[name]) for name in SHOWN] for run in runs]
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return html.escape(f"{value:.4f}" if isinstance(value, float) else str(value))

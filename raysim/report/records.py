"""Run directories as they are: finished, partial, failed, damaged or not ours at all.

Nothing in them makes reading fail: what cannot be used becomes a sentence in ``problems``.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import yaml

from raysim.errors import DataError
from raysim.runs.checksums import read_checked
from raysim.runs.folder import find_runs
from raysim.runs.record import RoundRecord, finite_number, newest_known, parse_records
from raysim.storage.files import read_array, reason
from raysim.storage.objects import Storage

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Run:
    """What one run directory holds."""

    root: str
    method: str
    seed: int
    config: Mapping[str, Any]
    yaml: str
    """config.yaml, word for word."""
    environment: Mapping[str, Any]
    records: Sequence[RoundRecord]
    result: Mapping[str, Any] | None
    """None where there is none: the run is not finished, or it is damaged."""
    storage: Storage = field(repr=False)
    problems: list[str] = field(default_factory=list, repr=False)
    """Grows when an array turns out to be damaged."""
    date: str = ""
    """The day it was begun, by its first event."""
    label: str = ""
    """Differs from that of every other run of the report."""
    short: str = ""
    """The method, and what tells it apart from the others of its setting."""
    setting: str = ""
    """Runs of equal settings (data, partition, noise, rounds, swept ones) may be compared."""
    series: str = ""
    """The seeds of one method in one setting."""
    _arrays: dict[str, np.ndarray | None] = field(default_factory=dict, repr=False)

    @property
    def is_finished(self) -> bool:
        """Whether every round is there; the result may have been lost since."""
        return self.result is not None or 0 < self.rounds <= self.rounds_done

    @property
    def rounds(self) -> int:
        """Rounds of training that the config asks for."""
        return int(finite_number(self.config, "train", "rounds") or 0)

    @property
    def rounds_done(self) -> int:
        return sum(record.has("loss") for record in self.records)

    @property
    def progress(self) -> str:
        """How far an unfinished run is; empty for a finished one."""
        if self.is_finished:
            return ""
        return f"not finished: {self.rounds_done} of {self.rounds} rounds"

    @property
    def federation(self) -> Mapping[str, Any]:
        """Who takes part; empty in older run directories."""
        found = self.environment.get("federation")
        return found if isinstance(found, Mapping) else {}

    @property
    def dataset(self) -> str:
        """Name of the dataset; empty where the config has none."""
        data = self.config.get("data")
        dataset = data.get("dataset") if isinstance(data, dict) else None
        return str((dataset.get("name") if isinstance(dataset, dict) else dataset) or "")

    def last(self, name: str) -> Any:
        """Return the newest value of an entry of the records, or None."""
        return newest_known(self.records, name)

    def artifact(self, name: str, ndim: int) -> np.ndarray | None:
        """Return an array of the run; None where it is absent or damaged."""
        if name not in self._arrays:
            self._arrays[name] = self._load(name, ndim)
        return self._arrays[name]

    def _load(self, name: str, ndim: int) -> np.ndarray | None:
        file = f"artifacts/{name}.npy"
        try:
            if not self.storage.exists(file):
                return None
            content, wrong = read_checked(self.storage, file)
            if wrong:
                raise ValueError(wrong)
            array = read_array(io.BytesIO(content), str)
        except (OSError, ValueError, DataError) as error:
            said = " ".join(str(error).split())[:100]
            why = reason(error) if isinstance(error, OSError) else said
            self.problems.append(f"{self.root}: {file} cannot be read ({why}).")
            return None
        if array.ndim != ndim or array.dtype.kind not in "fiu":
            self.problems.append(f"{self.root}: {file} is not an array of {ndim}-d numbers.")
            return None
        return array


def read_runs(places: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return the runs at paths, URLs and folders of runs, and what is wrong with the rest."""
    runs: dict[str, Run] = {}
    problems: list[str] = []
    for place in places:
        try:
            folders = find_runs(place)
            known = {folder.root for folder in folders}
            lost = [f for f in find_runs(place, "rounds.jsonl") if f.root not in known]
        except DataError as wrong:
            problems.append(f"{wrong}.")
            continue
        problems += [f"{f.root}: config.yaml is missing; left out." for f in lost]
        if not folders and not lost:
            problems.append(f"{place}: no run directory here or below (no config.yaml); left out.")
        for folder in folders:
            if folder.root not in runs and (run := _read(folder, problems)) is not None:
                runs[folder.root] = run
    if not runs:
        raise DataError(
            f"no run could be read, got {len(places)} place(s): {' '.join(problems)} "
            "Name run directories that `raysim run` made"
        )
    return list(runs.values()), problems


# ---- one directory -------------------------------------------------------------------------


def _read(folder: Storage, problems: list[str]) -> Run | None:
    text = _text(folder, "config.yaml", problems)
    if text is None:
        return None
    try:
        config = yaml.load(text, LOADER)
    except yaml.YAMLError:
        problems.append(f"{folder.root}: config.yaml is damaged; left out.")
        return None
    method = config.get("method") if isinstance(config, dict) else None
    named = isinstance(method, dict) and isinstance(method.get("name"), str)
    if not named or not isinstance(config.get("seed"), int):
        problems.append(f"{folder.root}: config.yaml is not that of a raysim run; left out.")
        return None
    result = _object(folder, "result.json", problems)
    events = _events(folder)
    records, damaged = parse_records(_text(folder, "rounds.jsonl", problems) or "")
    if damaged:
        lines = ", ".join(map(str, [*damaged][:5])) + (", ..." if len(damaged) > 5 else "")
        problems.append(
            f"{folder.root}: rounds.jsonl is damaged in line {lines}; those rounds are left out."
        )
    if not records and (result is None or finite_number(result, "accuracy", "mean") is None):
        problems.append(f"{folder.root}: no round is recorded; left out.{_ending(events)}")
        return None
    correct = config.get("correct")
    repaired = isinstance(correct, dict) and correct.get("before") is not None
    run = Run(
        root=folder.root,
        method=config["method"]["name"] + ("+fb_nll" if repaired else ""),
        seed=int(config["seed"]),
        config=config,
        yaml=text,
        environment=_object(folder, "environment.json", problems, needed=True) or {},
        records=records,
        result=result,
        storage=folder,
        date=str(events[0].get("time", ""))[:10] if events else "",
    )
    if result is None:
        state = "result.json is missing" if run.is_finished else "not finished"
        problems.append(
            f"{folder.root}: {state}, {run.rounds_done} of {run.rounds} rounds are recorded."
            f"{_ending(events)}"
        )
    return run


def _object(
    folder: Storage, name: str, problems: list[str], *, needed: bool = False
) -> dict[str, Any] | None:
    if not needed and not folder.exists(name):
        return None
    text = _text(folder, name, problems)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        problems.append(f"{folder.root}: {name} is damaged; read without it.")
        return None
    return found


def _text(folder: Storage, name: str, problems: list[str]) -> str | None:
    try:
        content, wrong = read_checked(folder, name)
        if wrong:
            problems.append(
                f"{folder.root}: {name} is damaged ({wrong}); what it says may be wrong."
            )
        return content.decode()
    except FileNotFoundError:
        problems.append(f"{folder.root}: {name} is missing.")
    except OSError as wrong:
        problems.append(f"{folder.root}: {name} cannot be read ({reason(wrong)}).")
    except UnicodeDecodeError:
        problems.append(f"{folder.root}: {name} is not text.")
    return None


def _events(folder: Storage) -> list[dict[str, Any]]:
    """Return the first event of events.jsonl and those of the last start and end."""
    try:
        lines = folder.read("events.jsonl").decode().split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return []
    events = []
    for i, line in enumerate(lines):
        if i and '"start"' not in line and '"end"' not in line:
            continue  # the events of rounds are many
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)]


def _ending(events: Sequence[Mapping[str, Any]]) -> str:
    """Return a blank and how the run ended; nothing where the events do not say."""
    told = [event for event in events if event.get("event") in ("start", "end")]
    if not told or told[-1].get("outcome") not in ("failed", "stopped"):
        return ""  # begun anew since, or finished
    why = str(told[-1].get("message", "")).removeprefix("run ended: ").rstrip(".")
    return f" It {'failed' if told[-1]['outcome'] == 'failed' else 'was stopped'}: {why}."


# ---- values of records ---------------------------------------------------------------------


def numbers(value: Any, *path: str) -> list[float] | None:
    """Return the list of numbers at a path of a JSON value, or None."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
        return None
    return [float(v) for v in value]

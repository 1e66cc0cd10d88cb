"""Records of runs as rows of plain values, and rows as pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raysim.errors import EnvironmentNotFit

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
CLIENT_ARRAYS = {
    "client_noise_given": "noise_given",
    "client_noise_corrected": "noise_corrected",
    "client_f_score": "f_score",
    "client_f_score_judged": "f_score_judged",
}
"""Arrays of a run with a value per client, and their columns."""


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a pandas frame; columns in the order in which rows first have them."""
    try:
        import pandas as pd
    except ImportError as wrong:
        raise EnvironmentNotFit(
            "frames need pandas, which is not installed; pip install 'raysim[pandas]'"
        ) from wrong
    return pd.DataFrame(list(rows), columns=list(dict.fromkeys(name for r in rows for name in r)))


def round_rows(config: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per round; ``step`` counts the rounds of all stages."""
    elapsed, rows = 0.0, []
    for step, record in enumerate(records, start=1):
        elapsed += record["seconds"]
        rows.append({**_run(config), "step": step, **_flat(record), "elapsed_s": elapsed})
    return rows


def client_rows(
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    noise: Mapping[str, Sequence[float]],
) -> list[Row]:
    """Return one row per client; None where the run directory does not say."""
    found: dict[str, Sequence[Any]] = {
        "task": facts.get("task_of", ()),
        "samples": facts.get("sizes", ()),
        "group": _newest(records, "groups") or (),
        "accuracy": _newest(records, "per_client") or (),
        **{column: noise.get(name, ()) for name, column in CLIENT_ARRAYS.items()},
    }
    count = max((len(values) for values in found.values()), default=0)
    return [
        {
            **_run(config),
            "client": k,
            **{name: values[k] if k < len(values) else None for name, values in found.items()},
        }
        for k in range(count)
    ]


def summary_row(
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    run_dir: str,
) -> Row:
    """Return what one run comes to; of an unfinished run, what it came to so far."""
    accuracy = _newest(records, "accuracy") or {}
    labels = _newest(records, "labels") or summary.get("labels") or {}
    flat = [_flat(record) for record in records]
    return {
        **_run(config),
        "rounds": sum(record["stage"] != "group" and "loss" in record for record in records),
        "accuracy": accuracy.get("mean"),
        "accuracy_std": accuracy.get("std"),
        "ari": _newest(records, "ari"),
        "noise_before": labels.get("noise_before"),
        "noise_after": labels.get("noise_after"),
        "up_bytes": sum(row.get("up_bytes", 0) for row in flat),
        "down_bytes": sum(row.get("down_bytes", 0) for row in flat),
        "seconds": sum(record["seconds"] for record in records),
        "finished": bool(summary),
        "run_dir": run_dir,
    }


def _run(config: Mapping[str, Any]) -> Row:
    return {
        "name": config["name"],
        "method": config["method"]["name"],
        "dataset": config["data"]["dataset"]["name"],
        "seed": config["seed"],
    }


def _newest(records: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((r[name] for r in reversed(records) if r.get(name) is not None), None)


def _flat(record: Mapping[str, Any]) -> Row:
    """Return a record without its lists: sections become ``section_name``."""
    row: Row = {}
    for name, value in record.items():
        if name == "accuracy":
            row |= {"accuracy": value["mean"], "accuracy_std": value["std"]}
        elif name == "bytes":
            for direction, sent in value.items():
                row[f"{direction}_bytes"] = sum(sent.values())
                row |= {f"{direction}_bytes_{what}": n for what, n in sent.items()}
        elif name == "by_task":
            for what, values in value.items():
                row |= {f"{what}_task_{i}": v for i, v in enumerate(values)}
        elif name == "late":
            row["late"] = len(value)
        elif isinstance(value, Mapping):
            row |= {f"{name}_{inner}": v for inner, v in _flat(value).items()}
        elif not isinstance(value, list):
            row[name] = value
    return row

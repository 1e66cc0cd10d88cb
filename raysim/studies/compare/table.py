"""The results of a comparison side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raysim.report.statistics import Difference, Mean, mean_over_seeds, paired_difference
from raysim.studies.compare.plan import Run

COLUMNS = ("method", "seeds", "accuracy %", "difference", "95 % interval", "ARI")
MORE = ("noise after %", "up MB", "down MB", "seconds")


@dataclass(frozen=True)
class Row:
    """One method over its seeds."""

    label: str
    accuracy: Mapping[int, float]
    """By seed, finished runs only."""
    difference: Difference | None
    """To the first method over common seeds; None for the first itself."""
    means: Mapping[str, Mean | None]
    """Of everything else in the table."""

    def plain(self) -> dict[str, Any]:
        """Return the row for JSON; accuracies are fractions."""
        mean = mean_over_seeds(list(self.accuracy.values()))
        return {
            "method": self.label,
            "seeds": list(self.accuracy),
            "accuracies": list(self.accuracy.values()),
            "accuracy": None if mean is None else asdict(mean),
            "difference": None if self.difference is None else asdict(self.difference),
            **{name: None if m is None else m.mean for name, m in self.means.items()},
        }


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return a row per method, in their order; unfinished runs count for nothing."""
    results: dict[str, dict[int, dict[str, Any]]] = {run.label: {} for run in runs}
    for run in runs:
        if run.folder.is_finished:
            results[run.label][run.config.seed] = run.folder.read("result.json")
    rows: list[Row] = []
    for label, by_seed in results.items():
        accuracy = {seed: float(result["accuracy"]["mean"]) for seed, result in by_seed.items()}
        means = {
            "ari": mean_over_seeds([r["ari"] for r in by_seed.values()]),
            "noise_after": mean_over_seeds([r["labels"]["noise_after"] for r in by_seed.values()]),
            "up_bytes": mean_over_seeds([r["bytes"]["up"] for r in by_seed.values()]),
            "down_bytes": mean_over_seeds([r["bytes"]["down"] for r in by_seed.values()]),
            "seconds": mean_over_seeds([r["seconds"]["total"] for r in by_seed.values()]),
        }
        difference = paired_difference(accuracy, rows[0].accuracy) if rows else None
        rows.append(Row(label, accuracy, difference, means))
    return rows


def texts(row: Row) -> list[str]:
    """Return the cells of a row under ``COLUMNS`` and ``MORE``."""
    accuracy = mean_over_seeds(list(row.accuracy.values()))
    if accuracy is None:
        return [row.label, "0", "no run finished", *[""] * (len(COLUMNS) + len(MORE) - 3)]
    sd = "" if accuracy.sd is None else f" ± {100 * accuracy.sd:.2f}"
    gap = row.difference
    interval = ""
    if gap is not None and gap.low is not None and gap.high is not None:
        interval = f"[{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
    shown = {"ari": (1, 3), "noise_after": (100, 2), "up_bytes": (1e-6, 2), "down_bytes": (1e-6, 2)}
    return [
        row.label,
        str(accuracy.n),
        f"{100 * accuracy.mean:.2f}{sd}",
        "" if gap is None else f"{100 * gap.mean:+.2f}",
        interval,
        *(_number(row.means[name], *form) for name, form in shown.items()),
        _number(row.means["seconds"], 1, 1),
    ]


def _number(mean: Mean | None, scale: float, digits: int) -> str:
    return "-" if mean is None else f"{scale * mean.mean:.{digits}f}"

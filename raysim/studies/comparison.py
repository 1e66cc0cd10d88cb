"""Several methods on the same data, noise, partition and initial weights, at one or more points.

A point is a set of swept values; ``compare`` has one without any. ``cells_of`` says which runs
there are and refuses what cannot work, ``rows_of`` puts the results side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from raysim.config import RunConfig, dump_config, load_config
from raysim.errors import ConfigError
from raysim.experiment import Experiment
from raysim.report.statistics import Difference, Mean, mean_over_seeds, paired_difference
from raysim.runs.results import Results, load_result
from raysim.settings import did_you_mean
from raysim.studies.study import Cell, check_fit, file_name, listed_seeds, unfinished

MOST_RUNS = 10_000
"""Of one comparison or sweep."""
SHARED = ("data", "model", "seed", "name", "output", "imports")
"""Sections that all methods of a comparison have in common."""
OWN = ("data.features", "data.correction_features")
"""How a method looks at the data; below ``data``, but not the data."""
COLUMNS = (
    *("seeds", "accuracy %", "difference", "95 % interval"),
    *("ARI", "noise after %", "up MB", "down MB", "seconds"),
)
"""Of the table, after method and swept keys."""
SHOWN: dict[str, tuple[str, float, int]] = {
    "ari": ("ari", 1, 3),
    "noise_after": ("labels.noise_after", 100, 2),
    "up_bytes": ("bytes.up", 1e-6, 2),
    "down_bytes": ("bytes.down", 1e-6, 2),
    "seconds": ("seconds.total", 1, 1),
}
"""The last columns: name in JSON -> where it is in a result, scale and digits in the table."""
Point = Mapping[str, str]
"""Swept key -> value, as in ``key=value``."""
Who = tuple[tuple[str, str], ...]
Source = str | Path | Mapping[str, Any] | RunConfig


@dataclass(frozen=True)
class Entry:
    """One method of a comparison."""

    label: str
    method: str
    overrides: tuple[str, ...] = ()
    """Settings that the others do not have."""


# ---- what is asked for -----------------------------------------------------------------------


def parse_entries(methods: str, settings: Sequence[tuple[str, str]]) -> tuple[Entry, ...]:
    """Return the methods of ``a,label:b,...``; ``settings`` are pairs of label and KEY=VALUE."""
    entries: dict[str, Entry] = {}
    for part in (piece.strip() for piece in methods.split(",")):
        label, _, method = part.rpartition(":")
        label = label or method
        if not method or not all(c.isalnum() or c in "._-" for c in label):
            raise ConfigError(
                f"--methods must be names of methods, or LABEL:METHOD, got {part!r} in "
                f"{methods!r}; write for example fb_nll,single"
            )
        if label in entries:
            raise ConfigError(
                f"--methods names {label!r} twice; give one of them a label, like second:{method}"
            )
        entries[label] = Entry(label, method)
    for label, override in settings:
        if label not in entries:
            hint = did_you_mean(label, list(entries))
            raise ConfigError(
                f"--with {label!r} is none of the methods{hint}; one of: {', '.join(entries)}"
            )
        key = override.partition("=")[0].strip()
        is_own = any(f"{key}.".startswith(f"{own}.") for own in OWN)
        if key.split(".")[0] in SHARED and not is_own:
            raise ConfigError(
                f"--with {label} {override}: all methods of a comparison have the same "
                f"{', '.join(SHARED)}; give it for all, without --with"
            )
        if key in ("method", "method.name"):
            raise ConfigError(
                f"--with {label} {override}: --methods names the methods; change it there"
            )
        entry = entries[label]
        entries[label] = replace(entry, overrides=(*entry.overrides, override))
    return tuple(entries.values())


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """Return the seeds of ``0-4`` or ``0,2,5``; None: the config's own."""
    if text is None:
        return None
    if text.strip().isdecimal() and int(text) > 0:
        last = int(text) - 1
        raise ConfigError(
            f"--seeds {text} may mean one seed or {text} of them; write 0-{last} for {text} seeds, "
            f"or {text}-{text} for seed {text} alone"
        )
    seeds = listed_seeds(text)
    if seeds is None:
        raise ConfigError(f"--seeds must be like 0-4 or 0,2,5; got {text!r}")
    return seeds


def cells_of(
    config: Source,
    overrides: Sequence[str],
    entries: Sequence[Entry],
    *,
    seeds: Sequence[int] | None,
    imports: Sequence[str] = (),
    points: Sequence[Point] = ({},),
) -> list[Cell]:
    """Return all runs: the first seed of every point and method first."""
    check_count(len(points) * len(entries) * (1 if seeds is None else len(seeds)))
    source = dump_config(config) if isinstance(config, RunConfig) else config
    for key in [*(o.partition("=")[0].strip() for o in overrides), *points[0]]:
        if key in ("method", "method.name"):
            raise ConfigError(f"{key} is what --methods decides; leave it out")
        if key == "seed" and seeds is not None:
            raise ConfigError("seed and --seeds contradict each other; give one of them")
    configs: list[tuple[Point, str, RunConfig]] = []
    known: dict[str, Point] = {}
    for point in points:
        own = _configs(source, overrides, entries, imports, point)
        configs += [(point, label, config) for label, config in own.items()]
        same = known.setdefault(repr([replace(c, output="any") for c in own.values()]), point)
        if same is not point:
            one, two = (" ".join(f"{k}={v}" for k, v in p.items()) for p in (same, point))
            raise ConfigError(f"{one} and {two} give the same runs; drop one")
    cells = [
        Cell({"method": label, **point, "seed": str(seed)}, replace(config, seed=seed).resolved())
        for seed in (seeds if seeds is not None else [configs[0][2].seed])
        for point, label, config in configs
    ]
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.folder.root, cell)
        if other is not cell:
            raise ConfigError(
                f"output gives {cell.folder.path} to {other.title} and to {cell.title}; use "
                "{method} and {seed} in it"
            )
    return cells


def check_count(runs: int) -> None:
    if runs > MOST_RUNS:
        raise ConfigError(
            f"this gives {runs:,} runs, and one command does at most {MOST_RUNS:,}; give fewer "
            "values, methods or seeds"
        )


def _configs(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str],
    entries: Sequence[Entry],
    imports: Sequence[str],
    point: Point,
) -> dict[str, RunConfig]:
    """Return the config of every method at a point."""
    configs: dict[str, RunConfig] = {}
    wrong: dict[str, ConfigError] = {}
    swept = [f"{key}={value}" for key, value in point.items()]
    place = "".join(f"{file_name(word)}/" for word in swept)
    for entry in entries:
        every = [f"method.name={entry.method}", *overrides, *swept, *entry.overrides]
        try:
            config = load_config(source, every, imports=imports)
            output = config.output.replace("{method}", f"{place}{entry.label}")
            configs[entry.label] = replace(config, output=output)
        except ConfigError as refused:
            wrong[entry.label] = refused
    if wrong:
        label, error = next(iter(wrong.items()))
        if len(wrong) == len(entries) > 1 and len({str(w) for w in wrong.values()}) == 1:
            raise error
        has_own = any(o.startswith("method.") for o in (*overrides, *swept))
        do = "; give a setting of one method by --with LABEL KEY=VALUE" if has_own else ""
        raise ConfigError(f"--methods {label}: {error}{do}")
    return configs


# ---- results ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One method at one point, over its seeds."""

    label: Mapping[str, str]
    """Method and swept values."""
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
            **self.label,
            "seeds": list(self.accuracy),
            "accuracies": list(self.accuracy.values()),
            "accuracy": None if mean is None else asdict(mean),
            "difference": None if self.difference is None else asdict(self.difference),
            **{name: None if m is None else m.mean for name, m in self.means.items()},
        }

    def texts(self) -> list[str]:
        """Return the cells under method, swept keys and ``COLUMNS``."""
        accuracy, names = mean_over_seeds(list(self.accuracy.values())), list(self.label.values())
        if accuracy is None:
            return [*names, "0", "no run finished", *[""] * (len(COLUMNS) - 2)]
        sd = "" if accuracy.sd is None else f" ± {100 * accuracy.sd:.2f}"
        gap, interval = self.difference, ""
        if gap is not None and gap.low is not None and gap.high is not None:
            interval = f"[{100 * gap.low:+.2f}, {100 * gap.high:+.2f}]"
        return [
            *names,
            str(accuracy.n),
            f"{100 * accuracy.mean:.2f}{sd}",
            "" if gap is None else f"{100 * gap.mean:+.2f}",
            interval,
            *(
                "-" if (mean := self.means[name]) is None else f"{scale * mean.mean:.{digits}f}"
                for name, (_, scale, digits) in SHOWN.items()
            ),
        ]


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """Return a row per point and method, in their order; unfinished runs count for nothing."""
    by_label: dict[Who, list[Cell]] = {}
    for cell in cells:
        by_label.setdefault(tuple(cell.who.items()), []).append(cell)
    rows: list[Row] = []
    firsts: dict[Who, Mapping[int, float]] = {}
    for label, own in by_label.items():
        finished = [cell for cell in own if cell.is_finished]
        results = {int(cell.label["seed"]): cell.folder.read("result.json") for cell in finished}
        accuracy = {seed: float(result["accuracy"]["mean"]) for seed, result in results.items()}
        means = {
            name: mean_over_seeds([_value(result, path) for result in results.values()])
            for name, (path, _, _) in SHOWN.items()
        }
        first = firsts.setdefault(label[1:], accuracy)  # at the same point
        difference = None if first is accuracy else paired_difference(accuracy, first)
        rows.append(Row(dict(label), accuracy, difference, means))
    return rows


def _value(result: Mapping[str, Any], path: str) -> Any:
    return functools.reduce(lambda value, key: value[key], path.split("."), result)


# ---- from Python -----------------------------------------------------------------------------


def compare(
    config: Source,
    methods: Sequence[str],
    *overrides: str,
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Sequence[str]] | None = None,
    imports: Sequence[str] = (),
    resume: bool = False,
    force: bool = False,
) -> Results:
    """Run the config with each method and seed; with one seed all get the same data and weights.

    A method is a name or ``label:name``; ``settings`` are ``key=value`` overrides by label. What
    cannot work is refused before the first run. ``raysim compare`` does the same in parallel.
    """
    entries = entries_of(methods, settings)
    cells = cells_of(config, overrides, entries, seeds=seeds, imports=imports)
    todo = unfinished(cells, resume=resume, force=force)
    check_fit(todo)
    for cell in todo:
        resume = cell.folder.is_started and not force
        Experiment(cell.run_config).run(resume=resume, force=force)
    return results_of(cells)


def entries_of(
    methods: Sequence[str], settings: Mapping[str, Sequence[str]] | None
) -> tuple[Entry, ...]:
    own = [(label, one) for label, many in (settings or {}).items() for one in many]
    return parse_entries(",".join(methods), own)


def results_of(cells: Sequence[Cell]) -> Results:
    return Results(load_result(cell.folder.root) for cell in cells)

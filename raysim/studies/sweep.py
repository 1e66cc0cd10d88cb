"""``compare`` at every point of a grid of settings."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from raysim.errors import ConfigError, RaysimError
from raysim.runs.results import Results
from raysim.studies.comparison import Point, Source, cells_of, check_count, entries_of, results_of
from raysim.studies.study import check_fit, default_backend, run_study, unfinished

NOT_SWEPT = ("seed", "name", "output", "imports")
MOST_VALUES = 1000
"""Of one range."""


def parse_sweep(words: Sequence[str]) -> tuple[list[str], list[Point]]:
    """Return the plain overrides among ``key=value`` words, and the points of the others.

    ``key=a,b,c`` lists values, ``key=lo..hi:n`` are n values from lo to hi, evenly spaced, and
    ``key=lo..hi:n:log`` evenly on a log scale. Points are all combinations, the last key fastest.
    """
    plain: list[str] = []
    swept: dict[str, list[str]] = {}
    for word in words:
        key, _, text = word.partition("=")
        key, values = key.strip(), _values(word, text)
        if values is None:
            plain.append(word)
            continue
        if key in NOT_SWEPT:
            raise ConfigError(f"{word}: {key} cannot be swept; sweep a setting of the runs")
        twice = key in swept or len(set(values)) < len(values)
        if twice:
            raise ConfigError(f"{word}: {key} has a value twice or is given twice; drop one")
        swept[key] = values
    twice_given = swept.keys() & {word.partition("=")[0].strip() for word in plain}
    if twice_given:
        raise ConfigError(f"{min(twice_given)} is given twice, with several values too; drop one")
    if not swept:
        raise ConfigError(
            "sweep needs a key with several values, got none; write for example "
            "data.noise.rate=0.1,0.3 or data.noise.rate=0.1..0.5:5 (one point: raysim compare)"
        )
    check_count(math.prod(len(values) for values in swept.values()))
    return plain, [
        dict(zip(swept, point, strict=True)) for point in itertools.product(*swept.values())
    ]


def _values(word: str, text: str) -> list[str] | None:
    """Return the several values of a word as YAML, or None: it is a plain override."""
    try:
        parts = yaml.safe_load(f"[{text}]")
    except yaml.YAMLError:  # a plain value with signs of YAML's own: the config's loader judges it
        return None
    values: list[Any] = []
    for part in parts:
        values += _range(word, part) if isinstance(part, str) and ".." in part else [part]
    if len(parts) == len(values) < 2:
        return None
    return [
        yaml.safe_dump([v], default_flow_style=True, width=10_000).strip()[1:-1] for v in values
    ]


def _range(word: str, text: str) -> list[Any]:
    """Return the numbers of ``lo..hi:n`` or ``lo..hi:n:log``; other text is a value of its own."""
    ends, _, how = text.partition(":")
    first, _, last = ends.partition("..")
    try:
        low, high = float(first), float(last)
    except ValueError:
        return [text]  # a path like ../data
    count, _, kind = how.partition(":")
    if not count.isdecimal() or not 2 <= int(count) <= MOST_VALUES or kind not in ("", "log"):
        raise ConfigError(
            f"{word}: a range is lo..hi:n or lo..hi:n:log with n from 2 to {MOST_VALUES}, got "
            f"{text!r}; write for example 0.1..0.5:5"
        )
    if not np.isfinite([low, high]).all() or (kind == "log" and min(low, high) <= 0):
        raise ConfigError(
            f"{word}: the ends of a range must be finite, and above 0 with log, got {text!r}; "
            "correct them"
        )
    spaced = np.geomspace if kind == "log" else np.linspace
    numbers = [float(f"{number:.12g}") for number in spaced(low, high, int(count))]
    whole = first.strip().lstrip("-").isdecimal() and last.strip().lstrip("-").isdecimal()
    return [int(n) if whole and n.is_integer() else n for n in numbers]


def sweep(
    config: Source,
    methods: Sequence[str],
    *words: str,
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Sequence[str]] | None = None,
    imports: Sequence[str] = (),
    resume: bool = False,
    force: bool = False,
    jobs: int | None = None,
) -> Results:
    """Run ``compare`` at every combination of swept values, in parallel; return all runs.

    ``words`` are overrides; ``key=a,b,c``, ``key=lo..hi:n`` and ``key=lo..hi:n:log`` are swept.
    ``jobs`` run at once, each in a process of its own; default: one per CPU.
    """
    plain, points = parse_sweep(words)
    entries = entries_of(methods, settings)
    cells = cells_of(config, plain, entries, seeds=seeds, imports=imports, points=points)
    todo = unfinished(cells, resume=resume, force=force)
    check_fit(todo)
    outcomes = run_study(
        todo,
        backend=default_backend(cells[0].config, jobs),
        say=logging.getLogger(__name__).info,
        errors=Path(f"runs/{cells[0].run_config.name}/sweep/errors"),
        force=force,
        again="sweep(..., resume=True)",
    )
    failed = [f"{outcome.cell.title}: {outcome.error}" for outcome in outcomes if outcome.error]
    if failed:
        raise RaysimError(
            f"{len(failed)} of {len(todo)} runs failed, the others are there: {'; '.join(failed)}"
        )
    return results_of(cells)

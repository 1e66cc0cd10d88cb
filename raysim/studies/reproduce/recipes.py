"""Which runs every table and figure is made of, and what config each has.

A cell is addressed ``dataset/m<tasks>/method`` or ``dataset/<column>/<row>``. Its config is a file
of ``configs/paper`` plus overrides; ``METHOD_SETTINGS`` is where a row gets settings of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal

from raysim.config import FREE_TO_CHANGE, RunConfig, changed_keys, load_config, load_saved
from raysim.errors import ConfigError, DataError
from raysim.methods.method import uses_of
from raysim.settings import did_you_mean
from raysim.studies.reproduce.papers import PAPERS
from raysim.studies.reproduce.tables import Cell, Rows, Target
from raysim.studies.study import listed_seeds

Scale = Literal["full", "small"]
SCALES: tuple[Scale, ...] = ("full", "small")
PAPER_SEEDS = 5
NOISES = {
    "none": "none",
    "class_independent": "{kind: class_independent, rate: 0.25}",
    "class_dependent": "{kind: class_dependent, rate: 0.25}",
    "uniform": "{kind: uniform, rho: 0.4, beta: 0.2}",
}
TARGETS: dict[str, Target] = {
    target.name: target for paper in PAPERS.values() for target in paper.targets
}

BASES: dict[tuple[str, str, str], str] = {
    (target.paper, dataset, scale): f"paper/{target.paper.replace('-', '_')}_{dataset}{suffix}"
    for target in TARGETS.values()
    for dataset in target.datasets
    for scale, suffix in (("full", ""), ("small", "_small"))
}
"""Bundled config of (paper, dataset, scale)."""

METHOD_SETTINGS: dict[str, Rows] = {name: paper.rows for name, paper in PAPERS.items()}
"""paper -> row -> ``both``, scale or ``scale/dataset`` -> overrides beside the method's name."""


def find_target(name: str) -> Target:
    if name not in TARGETS:
        raise ConfigError(
            f"there is no table or figure {name!r}{did_you_mean(name, list(TARGETS))}; "
            f"one of: {', '.join(TARGETS)}"
        )
    return TARGETS[name]


def select_cells(target: Target, patterns: str | None) -> tuple[Cell, ...]:
    """Return the cells that match one of the shell patterns ``a,b,...``; None: all of them."""
    if patterns is None:
        return target.cells
    chosen: set[str] = set()
    for pattern in (part.strip() for part in patterns.split(",")):
        found = {c.address for c in target.cells if fnmatchcase(c.address, pattern)}
        if not found:
            cells = ", ".join(c.address for c in target.cells)
            raise ConfigError(
                f"--cells {pattern!r} matches no cell of {target.name}; its cells are: {cells}"
            )
        chosen |= found
    return tuple(c for c in target.cells if c.address in chosen)


def parse_seeds(text: str | None, scale: Scale, default: int = PAPER_SEEDS) -> tuple[int, ...]:
    """Return the seeds of ``N`` (the first N), ``A-B`` or ``A-B,C-D``; None: all, small one."""
    if text is None:
        return tuple(range(default if scale == "full" else 1))
    is_count = text.isdecimal() and int(text) >= 1
    seeds = listed_seeds(f"0-{int(text) - 1}" if is_count else text)
    if seeds is None or not (is_count or all("-" in part for part in text.split(","))):
        raise ConfigError(
            f"--seeds must be a number of seeds or ranges of them, got {text!r}; write for example "
            "--seeds 5 for 0 to 4, or --seeds 3-3 for seed 3 alone"
        )
    return seeds


def run_config(target: Target, cell: Cell, *, seed: int, scale: Scale) -> RunConfig:
    """Return the config of one run, everything that decides its bits made explicit."""
    base = BASES[target.paper, cell.dataset, scale]
    if target.columns:
        changes = _paper_overrides(target.paper, cell, scale, base)
    else:
        changes = [
            f"data.partition.groups={cell.groups}",
            f"data.noise={NOISES[target.noise]}",
            *_method_overrides(target.paper, cell.method, scale),
        ]
    return load_config(base, [f"seed={seed}", *changes]).resolved()


def _paper_overrides(paper: str, cell: Cell, scale: Scale, base: str) -> list[str]:
    """Return what makes the base config that of a cell: its method, its column, its row.

    A partition of another kind keeps the number of clients.
    """
    known = PAPERS[paper]
    _, *own = _method_overrides(paper, cell.method, scale, cell.dataset)
    name = f"method.name={method_of(paper, cell.method)}"  # the base config's settings stay
    clients = load_config(base).data.partition.clients
    column: list[str] = []
    for part in cell.column.split("/"):
        column += known.columns.get(f"{cell.dataset}/{part}") or known.columns[part]
    return [f"data.partition.clients={clients}", name, *column, *own]


def _method_overrides(paper: str, row: str, scale: Scale, dataset: str = "") -> Sequence[str]:
    known = METHOD_SETTINGS.get(paper, {}).get(row, {})
    keys = ("both", scale, f"{scale}/{dataset}")
    return [
        f"method={method_of(paper, row)}",
        *(change for key in keys for change in known.get(key, ())),
    ]


def method_of(paper: str, row: str) -> str:
    """Return the registered name of the method that a row is made with."""
    return METHOD_SETTINGS.get(paper, {}).get(row, {}).get("method", (row,))[0]


def seeds_of(target: Target) -> int:
    """Return how often the paper repeated a run."""
    return PAPERS[target.paper].seeds


def paper_deviations(target: Target, cell: Cell, scale: Scale) -> tuple[str, ...]:
    """Return where the config of a cell is not the paper's setting, besides what is reduced."""
    if not target.trains:
        return ()
    known = PAPERS[target.paper].deviations
    parts = ("", scale, cell.dataset, *cell.column.split("/"), cell.method)
    return tuple(known[part] for part in parts if part in known)


def with_weights_at_hand(
    target: Target, cell: Cell, config: RunConfig
) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the config with EfficientNet-Lite0 where ResNet-18's weights cannot be had, and why.

    The second value lists the deviations from the paper, for the result.
    """
    setting = PAPERS[target.paper].pretrained.get(cell.dataset)
    used = {type(config.data.extractor(use)).__name__ for use in uses_of(config)}
    if setting is None or "ResNet18Features" not in used or has_resnet18_weights():
        return config, ()
    from raysim.config import dump_config

    changed = load_config(dump_config(config), [f"{setting}=lite0"])
    return changed, (
        f"{setting}: EfficientNet-Lite0, since the ImageNet weights of ResNet-18 are not here",
    )


@lru_cache(maxsize=1)
def has_resnet18_weights() -> bool:
    """Whether the weights are there or can be downloaded."""
    from raysim.data.features import ResNet18Features

    try:
        ResNet18Features().check_available()
    except DataError:
        return False
    return True


def reduced_settings(target: Target, cell: Cell, scale: Scale) -> dict[str, dict[str, Any]]:
    """Return what ``small`` changes against the paper's setting: key -> {paper, here}.

    ``paper`` is missing where the setting belongs to another network or extractor.
    """
    if scale == "full" or not target.trains:
        return {}
    full, small = (run_config(target, cell, seed=0, scale=s) for s in SCALES)
    printed = public_config(full)
    return {
        key: {"paper": paper, "here": here} if _has(printed, key) else {"here": here}
        for key, here, paper in changed_keys(small, full, ignore=(*FREE_TO_CHANGE, "name"))
        if _has(public_config(small), key) and key != "train.kernel"  # the same up to rounding
    }


def _has(plain: Any, path: str) -> bool:
    """Whether the setting exists: networks and features have settings of their own."""
    for key in path.split("."):
        if not isinstance(plain, Mapping) or key not in plain:
            return False
        plain = plain[key]
    return True


def public_config(config: RunConfig) -> dict[str, Any]:
    """Return the config as plain values without what does not touch the bits: no path is in it."""
    from raysim.config import dump_config

    return {key: value for key, value in dump_config(config).items() if key not in FREE_TO_CHANGE}


def config_digest(config: RunConfig) -> str:
    """Return the sha256 of everything that decides the run's bits."""
    text = json.dumps(public_config(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(config: RunConfig, stored: Mapping[str, Any]) -> list[str]:
    """Return how a stored ``public_config`` differs from ``config``, in words.

    Settings that were added since then count as their defaults.
    """
    try:
        before = load_saved(stored, "the stored result")
    except ConfigError as wrong:
        return [str(wrong)]
    changes = changed_keys(config, before, ignore=FREE_TO_CHANGE)
    return [f"{key} (now {new!r}, was {old!r})" for key, new, old in changes]

"""The config of every cell, and where it is not the paper's setting."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from raysim.config import (
    FREE_TO_CHANGE,
    RunConfig,
    changed_keys,
    dump_config,
    load_config,
    load_saved,
)
from raysim.errors import ConfigError, DataError
from raysim.methods.method import uses_of
from raysim.studies.reproduce.papers import SCALES, Scale, Table, TableCell


def run_config(table: Table, cell: TableCell, *, seed: int, scale: Scale) -> RunConfig:
    """Return the config of one run, everything that decides its bits made explicit.

    A partition of another kind keeps the number of clients; the base config's settings of the
    method stay.
    """
    paper = table.paper
    base = paper.configs.format(dataset=cell.dataset, small="_small" if scale == "small" else "")
    changes = [
        f"seed={seed}",
        f"data.partition.clients={load_config(base).data.partition.clients}",
        f"method.name={paper.method(cell.row)}",
        *table.settings,
        *paper.column_settings(cell.column, cell.dataset),
        *paper.row_settings(cell.row, scale, cell.dataset),
    ]
    return load_config(base, changes).resolved()


def paper_deviations(table: Table, cell: TableCell, scale: Scale) -> tuple[str, ...]:
    """Return where the config of a cell is not the paper's setting, besides what is reduced."""
    known = table.paper.deviations if table.trains else {}
    parts = ("all", scale, cell.dataset, *cell.column.split("/"), cell.row)
    return tuple(known[part] for part in parts if part in known)


def with_weights_at_hand(
    table: Table, cell: TableCell, config: RunConfig
) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the config with EfficientNet-Lite0 where ResNet-18's weights cannot be had, and why.

    The second value lists the deviations from the paper, for the result.
    """
    setting = table.paper.pretrained.get(cell.dataset)
    used = {type(config.data.extractor(use)).__name__ for use in uses_of(config)}
    if setting is None or "ResNet18Features" not in used or has_resnet18_weights():
        return config, ()
    return load_config(dump_config(config), [f"{setting}=lite0"]), (
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


def reduced_settings(table: Table, cell: TableCell, scale: Scale) -> dict[str, dict[str, Any]]:
    """Return what ``small`` changes against the paper's setting: key -> {paper, here}.

    ``paper`` is missing where the setting belongs to another network or extractor.
    """
    if scale == "full" or not table.trains:
        return {}
    full, small = (run_config(table, cell, seed=0, scale=s) for s in SCALES)
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

"""YAML and ``key=value`` in, a checked ``RunConfig`` out."""

from raysim.config.config import (
    FREE_TO_CHANGE,
    RunConfig,
    changed_keys,
    choice_name,
    config_yaml,
    dump_config,
    flat_values,
    load_config,
    load_saved,
)

__all__ = [
    "FREE_TO_CHANGE",
    "RunConfig",
    "changed_keys",
    "choice_name",
    "config_yaml",
    "dump_config",
    "flat_values",
    "load_config",
    "load_saved",
]

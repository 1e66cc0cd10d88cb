"""Reading and preparing the files of deploy/ for the tests in this folder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CLUSTER_FILES = ("cluster.yaml", "cluster-gcp.yaml", "cluster-onprem.yaml")


@pytest.fixture
def read() -> Callable[[str], dict[str, Any]]:
    """Return a function that reads one YAML file of deploy/."""

    def read(name: str) -> dict[str, Any]:
        return yaml.safe_load((ROOT / "deploy" / name).read_text())

    return read


@pytest.fixture(params=CLUSTER_FILES)
def raw(request: pytest.FixtureRequest, read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return each cluster file in turn, as written."""
    return read(request.param)


@pytest.fixture(params=CLUSTER_FILES[:2])
def cloud(request: pytest.FixtureRequest, read: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Return each cluster file whose machines are made on demand."""
    return read(request.param)


@pytest.fixture
def prepared() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that makes of a file what `ray up` makes of it, Ray's defaults included."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    def prepare(raw: dict[str, Any]) -> dict[str, Any]:
        config = prepare_config(copy.deepcopy(raw))
        validate_config(config)
        return config

    return prepare

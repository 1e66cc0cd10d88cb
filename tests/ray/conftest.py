"""Federations of five clients without images, on actors and in this process."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.protocols import ClientRecord
from raysim.runtime.local import LocalFederation
from raysim.settings import RuntimeSettings, ShareSettings

SIZES = (5, 1, 9, 3, 7)


@dataclass(frozen=True)
class NoWorld:
    """A world without images; ``missing`` makes it fail like a node without the files."""

    missing: str = ""

    def open(self):
        if self.missing:
            raise DataError(f"data.root is {self.missing}, but nothing is there; correct data.root")
        return self


def _records():
    return [
        ClientRecord(id=k, sample_ids=np.arange(n), labels=np.full(n, k))
        for k, n in enumerate(SIZES)
    ]


@pytest.fixture
def local():
    """The same five clients in this process."""
    return LocalFederation(_records(), NoWorld())


@pytest.fixture
def federate(ray_session):
    """Return a function that puts five clients on actors; they are ended afterwards."""
    from ray import cloudpickle

    from raysim.runtime.ray.federation import RayFederation

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import this file
    with contextlib.ExitStack() as stack:

        def make(actors=2, servers=1, cpus=0.5, missing="", **options):
            share = ShareSettings(cpus=cpus)
            runtime = RuntimeSettings(
                kind="ray", actors=actors, servers=servers, per_actor=share, **options
            )
            federation = RayFederation(_records(), NoWorld(missing), runtime)
            stack.callback(federation.close)
            return federation

        yield make

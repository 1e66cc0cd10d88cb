"""Facts about this machine that explain a result: versions, processor, memory, devices."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

PACKAGES = (
    "raysim",
    "ray",
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "scikit-image",
)


def describe_environment() -> dict[str, Any]:
    """Return versions and machine facts; no host name, user name or environment variable."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

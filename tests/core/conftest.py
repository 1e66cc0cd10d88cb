"""Array namespaces and a fixed Hypothesis profile for the tests of ``core``."""

import importlib
import importlib.util

import pytest
from hypothesis import settings

settings.register_profile(
    "core", derandomize=True, max_examples=20, deadline=None, database=None, print_blob=False
)
settings.load_profile("core")


def _namespaces() -> list[str]:
    names = ["numpy", "torch", "array_api_strict"]
    if importlib.util.find_spec("cupy") and importlib.import_module("cupy").is_available():
        names.append("cupy")
    return names


@pytest.fixture(scope="session", params=_namespaces())
def xp(request):
    """Return one array library after the other: what runs here runs on all of them."""
    return importlib.import_module(request.param)

"""The contract: config and seed decide the bits, whatever the number of actors."""

from __future__ import annotations

import pytest

from raysim.methods import METHODS

METHOD_NAMES = METHODS.names()


def bits(result):
    """What must not differ between two runs of one config."""
    return result.summary["digest"]


@pytest.mark.ray
@pytest.mark.parametrize("actors", [1, 2, 3, 5])
def test_fb_nll_has_the_same_bits_for_any_number_of_actors(run_tiny, alone, kept_actors, actors):
    spread = run_tiny("fb_nll", actors=actors)

    assert bits(spread) == alone("fb_nll")["digest"]
    assert len(bits(spread)["models"]) == 3


@pytest.mark.ray
@pytest.mark.parametrize("method", [m for m in METHOD_NAMES if m != "fb_nll"])
def test_every_method_has_the_same_bits_on_two_actors(run_tiny, alone, kept_actors, method):
    assert bits(run_tiny(method, actors=2)) == alone(method)["digest"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("method", [m for m in METHOD_NAMES if m != "fb_nll"])
def test_every_method_has_the_same_bits_on_five_actors(run_tiny, alone, kept_actors, method):
    assert bits(run_tiny(method, actors=5)) == alone(method)["digest"]


@pytest.mark.ray
def test_several_parameter_servers_give_the_same_bits(run_tiny, kept_actors):
    spread = run_tiny("fb_nll", "runtime.servers=2", actors=2)

    assert bits(spread) == bits(run_tiny("fb_nll"))
    assert sum(row["role"] == "server" for row in _actors(spread)) == 2


@pytest.mark.ray
def test_partial_participation_has_the_same_bits(run_tiny, kept_actors):
    some = "train.participation=0.4"

    assert bits(run_tiny("fb_nll", some, actors=3)) == bits(run_tiny("fb_nll", some))


def test_another_seed_has_other_bits(run_tiny):
    assert bits(run_tiny("single")) != bits(run_tiny("single", "seed=1"))


def _actors(result):
    import json

    return json.loads((result.run_dir / "environment.json").read_text())["actors"]

"""Which methods a deadline can hold for: those whose training leaves no memory behind."""

from __future__ import annotations

import pytest

from raysim.methods import METHODS
from raysim.runtime.local import LocalFederation

REMEMBERING = {
    "clipfl": "trains in a map and sends what it trained after the scoring",
    "cores2_local": "memory says which samples were kept",
    "fedcorr": "memory holds losses and labels",
    "fedrn": "the upload waits at the client until it is kept",
    "joint_optimization": "memory holds soft labels",
    "rhfl": "models stay in the clients' memory",
    "selfie": "memory holds the history of predictions",
}


@pytest.mark.parametrize("name", METHODS.names())
def test_a_method_says_whether_its_clients_keep_something_from_training(name):
    remembers = name.removesuffix("_fb_nll") in REMEMBERING

    assert METHODS.get(name)().stateless is not remembers


def test_fedfixer_keeps_a_model_at_the_client_only_without_the_pull():
    assert METHODS.get("fedfixer")().stateless
    assert not METHODS.get("fedfixer")(without="distance").stateless


@pytest.mark.parametrize("name", METHODS.names())
def test_what_a_method_reduces_is_as_stateless_as_it_says(name, run_tiny, monkeypatch):
    tasks, reduce = [], LocalFederation.reduce

    def watched(self, task, **named):
        tasks.append(task)
        return reduce(self, task, **named)

    monkeypatch.setattr(LocalFederation, "reduce", watched)
    result = run_tiny(name, "train.rounds=4")
    stateless = [getattr(task, "stateless", False) for task in tasks]

    assert result.summary["rounds"] == 4
    if name.removesuffix("_fb_nll") not in REMEMBERING:
        assert all(stateless)

"""Methods on FedAvg are FedAvg with their mechanism switched off, and only then.

All run with FedAvg's weights by samples and one kernel, so that nothing else tells them apart.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from raysim.config import load_config
from raysim.experiment import Experiment
from raysim.methods import fedrn
from raysim.methods.joint_optimization import JointOptimization

FAIR = ("train.rounds=4", "train.epochs=1", "train.kernel=autograd", "server.weights=samples")
CLEAN = ("data.noise=none",)
SWITCHES = {
    "co_teaching": (("method.forget_rate=0",), ()),
    "cores2_global": (
        ("method.warmup=4", "method.confidence=0"),
        ("method.warmup=1", "method.confidence=0"),
    ),
    "cores2_local": (
        ("method.warmup=4", "method.confidence=0"),
        ("method.warmup=1", "method.confidence=0"),
    ),
    "fedfixer": (
        ("method.warmup=4", "method.confidence=0", "method.without=personal"),
        ("method.warmup=1", "method.confidence=0", "method.without=personal"),
    ),
    "mr": (
        # Every loss is in the first bin, so nothing is above the threshold.
        ("method.patience=1", "method.max_epochs=2", "method.bins=2", "method.largest_loss=1e9"),
        ("method.patience=2", "method.max_epochs=12"),
    ),
    "rfl": (
        (
            *("method.forget_rate=0", "method.pull=0", "method.entropy=0"),
            *("method.pseudo_rounds=4", "server.weights=uniform"),
        ),
        ("method.ramp_rounds=1", "method.pseudo_rounds=2", "server.weights=uniform"),
    ),
    "selfie": (
        ("method.warmup_rounds=0", "method.noise_rate=0", "method.uncertainty=0"),
        ("method.warmup_rounds=0",),
    ),
}
"""Settings that switch a method's mechanism off, and such that switch it on within four rounds."""


@pytest.fixture
def weights(tmp_path):
    """Return a function that runs a method and gives the weights of its model, as one vector."""
    count = 0

    def run(method, *overrides):
        nonlocal count
        count += 1
        place = ("runtime.kind=local", f"output={tmp_path / str(count)}")
        config = load_config("quickstart", [*FAIR, f"method={method}", *place, *overrides])
        module = Experiment(config).run().module("group/0")
        return np.concatenate([part.detach().numpy().ravel() for part in module.parameters()])

    return run


def common(overrides):
    """Settings that are FedAvg's as well."""
    return [text for text in overrides if not text.startswith("method.")]


@pytest.mark.parametrize("method", sorted(SWITCHES))
def test_without_its_mechanism_a_method_is_fedavg(weights, method):
    off, on = SWITCHES[method]
    fedavg = weights("single", *common(off))

    np.testing.assert_array_equal(weights(method, *off), fedavg)
    assert np.abs(weights(method, *on) - fedavg).max() > 1e-3


def test_the_oracle_is_fedavg_only_while_all_labels_are_right(weights):
    np.testing.assert_array_equal(weights("oracle", *CLEAN), weights("single", *CLEAN))
    assert np.abs(weights("oracle") - weights("single")).max() > 1e-3


def test_joint_optimisation_that_never_replaces_a_label_is_fedavg(weights, monkeypatch):
    plain = ("method.warmup_rounds=0", "method.prior_weight=0", "method.entropy_weight=0")
    replacing = weights("joint_optimization", *plain)
    train = JointOptimization.train

    def warm(self, session, memory, where):
        return train(self, session, memory, replace(where, stage="warmup"))

    monkeypatch.setattr(JointOptimization, "train", warm)
    fedavg = weights("single")

    never = weights("joint_optimization", *plain)

    np.testing.assert_allclose(never, fedavg, atol=1e-5)  # soft labels sum in another order
    assert np.abs(replacing - fedavg).max() > 1e-3


def test_fedrn_that_trusts_every_label_trains_another_model(weights, monkeypatch):
    # Its rounds are drawn by stage, so it has no twin among FedAvg's runs.
    judging = weights("fedrn", "method.warmup_rounds=1")
    monkeypatch.setattr(fedrn, "THRESHOLD", -1.0)

    assert np.abs(weights("fedrn", "method.warmup_rounds=1") - judging).max() > 1e-3


@pytest.mark.parametrize(
    ("method", "off"),
    [("fedlsr", "method.consistency=0"), ("fedlsr", "method.entropy=0"),
     ("dividemix", "method.unlabelled=0"), ("dividemix", "method.threshold=0.999")],
)  # fmt: skip
def test_every_part_of_a_loss_of_its_own_counts(weights, method, off):
    whole = weights(method)

    assert np.abs(weights(method, off) - whole).max() > 1e-4
    assert np.abs(weights("single") - whole).max() > 1e-3


def test_every_ablation_of_fedfixer_trains_another_model(weights):
    names = ("nothing", "distance", "confidence", "alternation", "personal")
    early = ("method.warmup=1", "method.confidence=1")
    found = [weights("fedfixer", *early, f"method.without={name}") for name in names]

    for one, other in combinations(found, 2):
        assert np.abs(one - other).max() > 1e-3

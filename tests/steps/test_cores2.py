"""CORES2 in a federation: what its two forms train, and on which samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from raysim.methods.cores2 import GlobalCores2, LocalCores2
from raysim.models.losses import confident_loss, sieve
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.dual import DualStep, train_dual, train_sifted

MODEL = MODELS.get("logistic")()
TRAIN = TrainSettings(epochs=1, batch_size=8, lr=0.3, order="stored")
STEP = DualStep(warmup=0, confidence=2.0, is_dual=False)


def samples():
    rng = stream(0, "test.cores2")
    images = rng.normal(size=(8, 1, 2, 2)).astype(np.float32)
    trees = [
        {"trainable": rng.normal(size=15).astype(np.float32), "buffers": np.zeros(0, np.float32)}
        for _ in range(2)
    ]
    return images, rng.integers(0, 3, 8), trees


def outputs(flat, images):
    rows = torch.tensor(images.reshape(8, 4))
    return rows @ flat[:12].reshape(3, 4).T + flat[12:]


def moved(flat, loss_of, size):
    flat = torch.tensor(flat).requires_grad_(True)
    (gradient,) = torch.autograd.grad(loss_of(flat), flat)
    return (flat - size * gradient).detach().numpy()


def test_the_global_model_trains_on_its_own_selection_with_smaller_steps():
    images, labels, (start, _) = samples()
    given = torch.tensor(labels)
    with open_session(
        MODEL, [start], images, labels, TRAIN, rng=stream(1, "test"), classes=3
    ) as own:
        count, mask = train_dual(own, STEP, round_id=3)
        found = own.tree()["trainable"]

    chosen = sieve(outputs(torch.tensor(start["trainable"]), images), given)
    # beta 2 divides the step by 3.
    expected = moved(
        start["trainable"],
        lambda w: confident_loss(outputs(w, images), given, 2.0)[chosen].mean(),
        0.3 / 3.0,
    )
    assert 0 < chosen.sum() < 8
    assert mask.tolist() == chosen.tolist()
    assert count == chosen.sum()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_private_model_selects_for_plain_cross_entropy():
    images, labels, trees = samples()
    given = torch.tensor(labels)
    with open_session(MODEL, trees, images, labels, TRAIN, rng=stream(1, "test"), classes=3) as own:
        mask = train_sifted(own, STEP, round_id=3)
        shared, private = own.tree(0)["trainable"], own.tree(1)["trainable"]

    start, own_start = trees[0]["trainable"], trees[1]["trainable"]
    chosen = sieve(outputs(torch.tensor(own_start), images), given)
    assert 0 < chosen.sum() < 8
    assert mask.tolist() == chosen.tolist()
    expected = moved(
        own_start,
        lambda w: confident_loss(outputs(w, images), given, 2.0)[chosen].mean(),
        0.3 / 3.0,
    )
    np.testing.assert_allclose(private, expected, atol=1e-6)
    expected = moved(start, lambda w: cross_entropy(outputs(w, images)[chosen], given[chosen]), 0.3)
    np.testing.assert_allclose(shared, expected, atol=1e-6)


@pytest.mark.parametrize(("method", "keeps"), [(GlobalCores2(), False), (LocalCores2(), True)])
def test_only_the_local_form_keeps_a_model_at_the_client(bench, method, keeps):
    made = bench([[0, 0, 1], [], [1]], "model.name=logistic", "train.epochs=1", classes=2)
    *_, stage = method.stages(made.config)

    stage.step(made.round(), State(groups={0: 0, 1: 0, 2: 0}))

    memory = made.federation.map(memory_task)
    assert all(("private/trainable" in names) == keeps for names in memory.values())


def memory_task(client, memory, arguments):
    return memory, sorted(memory)


@pytest.mark.parametrize("wrong", [{"warmup": -1}, {"confidence": -0.5}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        GlobalCores2(**wrong)

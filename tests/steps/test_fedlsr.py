"""FedLSR: its schedule, a step on two views as a slow loop, and rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.fedlsr import FedLsr
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.views import TwoViewLoss, second_view, train_two_views
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("logistic")()


@pytest.mark.parametrize(("round_id", "gamma"), [(0, 0.0), (2, 0.2), (4, 0.4), (19, 0.4)])
def test_the_consistency_grows_over_a_fifth_of_the_rounds(round_id, gamma):
    config = load_config("quickstart", ["train.rounds=20"])

    loss = FedLsr().loss(round_id, config)

    assert loss == TwoViewLoss(consistency=pytest.approx(gamma), entropy=0.6)


def test_without_a_warm_up_it_is_there_at_once():
    config = load_config("quickstart")

    assert FedLsr(warmup_rounds=0, parity="code").loss(0, config) == TwoViewLoss(
        consistency=0.4, entropy=0.6, literal=True
    )


def test_a_batch_follows_the_sheet():
    rng = stream(0, "test.fedlsr")
    images = rng.normal(size=(5, 1, 4, 4)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 5)
    start = rng.normal(size=51).astype(np.float32)
    tree = {"trainable": start, "buffers": np.zeros(0, np.float32)}
    train = TrainSettings(epochs=1, batch_size=5, lr=LR, order="stored")
    loss = TwoViewLoss(consistency=0.4, entropy=0.6)
    with open_session(
        MODEL, [tree], images, labels, train, rng=stream(1, "test"), classes=CLASSES
    ) as own:
        train_two_views(own, loss)
        found, noted = own.tree()["trainable"], own.loss

    again = stream(1, "test")
    again.integers(2**63)  # torch's seed
    other = second_view(images, again)
    share = again.beta(1.0, 1.0)
    flat = torch.tensor(start, requires_grad=True)
    weight, bias = flat[:48].reshape(CLASSES, 16), flat[48:]
    total = 0.0
    for x, view, y in zip(images, other, labels, strict=True):
        z1, z2 = (weight @ torch.tensor(v).reshape(-1) + bias for v in (x, view))
        p1, p2 = torch.softmax(z1, 0), torch.softmax(z2, 0)
        p = share * p1 + (1 - share) * p2
        q1, q2 = torch.softmax(3 * z1, 0), torch.softmax(3 * z2, 0)
        m = (q1 + q2) / 2
        js = ((q1 * (q1 / m).log()).sum() + (q2 * (q2 / m).log()).sum()) / 2
        entropy = -((p1 * p1.log()).sum() + (p2 * p2.log()).sum()) / 2
        total = total + (-(p[y] ** 2 / (p**2).sum()).log() + 0.4 * js + 0.6 * entropy) / 5
    (slope,) = torch.autograd.grad(total, flat)

    np.testing.assert_allclose(found, start - LR * slope.numpy(), atol=1e-5)
    assert noted == pytest.approx(total.item(), rel=1e-5)


def test_a_round_averages_by_samples_and_survives_an_empty_client(bench):
    made = bench([[0, 1, 2], [1], []], "model.name=logistic", "train.epochs=1", classes=CLASSES)
    pixels = stream(0, "test.fedlsr").normal(size=made.world.pixels.shape)
    made.world.pixels = pixels.astype(np.float32)
    step = FedLsr().stages(made.config)[1].step
    context = made.round()

    together = step(context, State(groups=dict.fromkeys(range(3), 0)))
    alone = step(made.round(), State(groups={0: 0, 1: 1, 2: 2}))

    def weights(state, group):
        tree = made.federation.get(state.models[f"group/{group}"])
        return np.asarray(tree["trainable"], np.float64)

    # An empty client counts as one sample.
    expected = (3 * weights(alone, 0) + weights(alone, 1) + weights(alone, 2)) / 5
    np.testing.assert_allclose(weights(together, 0), expected, atol=1e-6)
    assert np.isfinite(context.entry["loss"])


def test_what_it_does_not_do_is_refused():
    config = load_config("quickstart", ["method=fedlsr", "train.mixup=1.0"])

    with pytest.raises(ConfigError, match=r"train\.mixup is 1, but FedLSR"):
        config.method.check(config, classes=10, dimensions={})


@pytest.mark.parametrize("wrong", [{"consistency": -1.0}, {"entropy": -1.0}, {"warmup_rounds": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        FedLsr(**wrong)

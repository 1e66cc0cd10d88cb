"""Co-teaching: its schedule, one batch as the algorithm says it, and both networks on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.errors import ConfigError
from raysim.methods.co_teaching import CoTeaching, teach, with_pair
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("logistic")()
TRAIN = TrainSettings(epochs=1, batch_size=8, lr=LR, order="stored")


@pytest.mark.parametrize(("round_id", "rate"), [(0, 0.0), (1, 0.05), (3, 0.15), (4, 0.2), (9, 0.2)])
def test_the_forgotten_share_grows_to_tau_and_stays(round_id, rate):
    assert CoTeaching(forget_rate=0.2).rate(round_id, 4) == pytest.approx(rate)


def test_without_a_ramp_the_share_is_there_at_once():
    assert CoTeaching(forget_rate=0.3).rate(0, 0) == 0.3


# ---- one batch ----------------------------------------------------------------------------------


def pair(rng):
    return [
        {"trainable": rng.normal(size=15).astype(np.float32), "buffers": np.zeros(0, np.float32)}
        for _ in range(2)
    ]


def taught(rate, *, samples=8, train=TRAIN):
    """Weights before, images, labels, both networks after, what network 0 kept, and its loss."""
    rng = stream(0, "test.co_teaching")
    images = rng.normal(size=(samples, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, CLASSES, samples)
    start = pair(rng)
    with open_session(
        MODEL, start, images, labels, train, rng=stream(1, "test"), classes=CLASSES
    ) as session:
        kept = teach(session, rate=rate)
        after = [session.tree(0), session.tree(1)]
        return start, images, labels, after, kept, session.loss


def slow_losses(flat, images, labels):
    """Cross-entropy of each sample, one after another."""
    weight, bias = flat[:12].reshape(3, 4), flat[12:]
    return [
        -torch.log(torch.softmax(weight @ torch.tensor(x) + bias, dim=0)[y])
        for x, y in zip(images.reshape(-1, 4), labels, strict=True)
    ]


def test_each_network_learns_from_what_the_other_one_keeps():
    start, images, labels, after, kept, loss = taught(0.3)

    flats = [torch.tensor(tree["trainable"], requires_grad=True) for tree in start]
    losses = [slow_losses(flat, images, labels) for flat in flats]
    # floor(0.7 * 8) = 5 samples each
    choice = [sorted(range(8), key=lambda i, own=own: own[i].item())[:5] for own in losses]
    assert set(choice[0]) != set(choice[1])
    for me, peer in ((0, 1), (1, 0)):
        fit = sum(losses[me][i] for i in choice[peer]) / 5
        (gradient,) = torch.autograd.grad(fit, flats[me])
        moved = flats[me].detach() - LR * gradient
        np.testing.assert_allclose(after[me]["trainable"], moved.numpy(), atol=1e-6)
        if me == 0:
            assert loss == pytest.approx(fit.item(), abs=1e-6)
    assert sorted(np.flatnonzero(kept)) == sorted(choice[0])


def test_momentum_and_decay_are_those_of_the_train_section():
    # Two epochs of one full batch with momentum: v1 = g1, v2 = m v1 + g2.
    train = TrainSettings(epochs=2, batch_size=8, lr=LR, order="stored", momentum=0.5)
    start, images, labels, after, *_ = taught(0.0, train=train)

    flat, velocity = torch.tensor(start[0]["trainable"]), 0.0
    for _ in range(2):
        flat = flat.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(sum(slow_losses(flat, images, labels)) / 8, flat)
        velocity = 0.5 * velocity + gradient
        flat = flat.detach() - LR * velocity
    np.testing.assert_allclose(after[0]["trainable"], flat.numpy(), atol=1e-6)


def test_a_batch_of_which_nothing_is_kept_makes_no_step():
    # floor(0.8 * 1) = 0, even with weight decay.
    train = TrainSettings(epochs=1, batch_size=8, lr=LR, weight_decay=0.1)
    start, _, _, after, kept, loss = taught(0.2, samples=1, train=train)

    for before, now in zip(start, after, strict=True):
        np.testing.assert_array_equal(now["trainable"], before["trainable"])
    assert kept.tolist() == [False]
    assert np.isfinite(loss)


# ---- the method ---------------------------------------------------------------------------------


def run_round(made, method, number=0, state=None):
    context = made.round(number)
    state = State(groups=dict.fromkeys(range(len(made.labels)), 0)) if state is None else state
    *_, stage = method.stages(made.config)
    return stage.step(context, state), context


def test_both_networks_travel_and_start_apart(bench):
    made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)

    state, context = run_round(made, CoTeaching())

    tree = made.federation.get(state.models["group/0"])
    assert set(tree) == {"trainable", "buffers", "second/trainable", "second/buffers"}
    assert not np.allclose(tree["trainable"], tree["second/trainable"])
    # 2 classes of 4 pixels: 10 numbers of 4 bytes, 2 networks, 2 clients, each way.
    assert context.entry["bytes"] == {"up": {"model": 160}, "down": {"model": 160}}


def test_labels_are_judged_once_samples_are_left_out(bench):
    made = bench([[0, 0, 1, 1, 0], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)

    state, first = run_round(made, CoTeaching(ramp_rounds=1))
    _, second = run_round(made, CoTeaching(ramp_rounds=1), 1, state)

    assert "selection" not in first.entry
    # 4 of 5 and 1 of 2 kept, all of them right: recall (0.8 + 0.5) / 2.
    assert second.entry["selection"]["precision"] == 1.0
    assert second.entry["selection"]["recall"] == pytest.approx(0.65)


def test_a_client_without_samples_sends_what_it_received(bench):
    made = bench([[0, 1, 1], []], "model.name=logistic", "train.epochs=1", classes=2)
    alone = bench([[0, 1, 1]], "model.name=logistic", "train.epochs=1", classes=2)

    both, _ = run_round(made, CoTeaching())
    one, _ = run_round(alone, CoTeaching())

    start = made.federation.get(
        with_pair(made.round(), State(groups=both.groups)).models["group/0"]
    )
    trained = alone.federation.get(one.models["group/0"])
    found = made.federation.get(both.models["group/0"])
    for part in ("trainable", "second/trainable"):  # 3 samples count 3, none counts 1
        np.testing.assert_allclose(found[part], (3 * trained[part] + start[part]) / 4, atol=1e-6)


@pytest.mark.parametrize(
    "wrong", [{"forget_rate": 1.0}, {"forget_rate": -0.1}, {"ramp_rounds": -1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        CoTeaching(**wrong)


@pytest.mark.parametrize("wrong", ["train.mixup=1.0", "server.optimizer=fedadam"])
def test_training_that_does_not_fit_is_refused(bench, wrong):
    made = bench([[0, 1]], wrong, classes=2)

    with pytest.raises(ConfigError, match=wrong.split("=")[0]):
        CoTeaching().check(made.config, classes=2, dimensions={})

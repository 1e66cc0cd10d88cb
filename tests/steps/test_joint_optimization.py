"""Joint Optimisation: its loss, one batch and the labels after it, what a client keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raysim.errors import ConfigError
from raysim.methods.joint_optimization import HISTORY, TARGETS, JointOptimization
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State, Where
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.server import ServerSettings

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("logistic")()
METHOD = JointOptimization(history=4)  # a 1.2, b 0.8


def test_the_loss_worked_by_hand():
    # One row p = (1/2, 1/4, 1/4), target class 1. L_c = 2 log 2, L_e = 1.5 log 2,
    # L_p = 1/3 (log 2/3 + 2 log 4/3).
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25]]))

    found = METHOD.loss(logits, torch.tensor([[0.0, 1.0, 0.0]]))

    divergence = (math.log(2 / 3) + 2 * math.log(4 / 3)) / 3
    expected = 2 * math.log(2) + 1.2 * divergence + 0.8 * 1.5 * math.log(2)
    assert found.item() == pytest.approx(expected, abs=1e-6)


# ---- epochs of one batch ------------------------------------------------------------------------


def trained(method=METHOD, *, epochs=2, update=True, past=0):
    """Weights before, images, labels, and model, history and targets after."""
    rng = stream(0, "test.joint")
    images = rng.normal(size=(8, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 8)
    flat = rng.normal(size=15).astype(np.float32)
    tree = {"trainable": flat, "buffers": np.zeros(0, np.float32)}
    history = np.zeros((8, 4, CLASSES), np.float32)
    if past:
        history[:, -past:] = rng.dirichlet(np.ones(CLASSES), (8, past))
    targets = np.eye(CLASSES, dtype=np.float32)[labels]
    train = TrainSettings(epochs=epochs, batch_size=8, lr=LR, order="stored")
    with open_session(
        MODEL, [tree], images, labels, train, rng=stream(1, "test"), classes=CLASSES
    ) as own:
        own.sent = {"server": ServerSettings()}
        where = Where("train" if update else "warmup", 0, 4)
        memory, sent = method.train(own, {HISTORY: history, TARGETS: targets}, where)
        known = memory[HISTORY], memory[TARGETS]
        return flat, images, labels, history, sent.tree["trainable"], *known


def slow_epoch(flat, images, targets, prior):
    """Weights and predictions of one epoch, one sample and one class at a time."""
    flat = torch.tensor(flat, requires_grad=True)
    weight, bias = flat[:12].reshape(3, 4), flat[12:]
    rows = [torch.softmax(weight @ torch.tensor(x) + bias, 0) for x in images.reshape(8, 4)]
    loss = 0.0
    for p, s in zip(rows, targets, strict=True):
        for c in range(3):
            loss = loss - s[c] * torch.log(p[c]) / 8 - 0.8 * p[c] * torch.log(p[c]) / 8
    for c in range(3):
        mean = sum(p[c] for p in rows) / 8
        loss = loss - 1.2 * prior[c] * torch.log(mean)
    (gradient,) = torch.autograd.grad(loss, flat)
    moved = (flat - LR * gradient).detach().numpy()
    return moved, np.array([p.detach().tolist() for p in rows])


@pytest.mark.parametrize("own_prior", [False, True])
def test_labels_follow_the_mean_of_past_predictions(own_prior):
    method = JointOptimization(history=4, prior="client" if own_prior else "uniform")
    flat, images, labels, _, after, history, targets = trained(method)

    prior = np.bincount(labels, minlength=3) / 8 if own_prior else np.full(3, 1 / 3)
    flat, first = slow_epoch(flat, images, np.eye(3)[labels], prior)
    flat, second = slow_epoch(flat, images, first, prior)  # labels of the first epoch's end
    np.testing.assert_allclose(after, flat, atol=1e-6)
    np.testing.assert_allclose(targets, (first + second) / 2, atol=1e-6)
    np.testing.assert_allclose(history[:, -2:], np.stack([first, second], axis=1), atol=1e-6)
    assert not history[:, :2].any()


def test_a_full_history_drops_what_is_oldest():
    _, _, _, before, _, history, targets = trained(epochs=1, past=4)

    np.testing.assert_array_equal(history[:, :3], before[:, 1:])
    np.testing.assert_allclose(targets, history.mean(axis=1), atol=1e-6)


def test_the_released_code_divides_by_the_length():
    *_, targets = trained(JointOptimization(history=4, parity="code"), epochs=1)

    np.testing.assert_allclose(targets.sum(axis=1), 0.25, atol=1e-6)  # one of four is there


def test_warm_up_keeps_the_labels_and_notes_predictions():
    _, _, labels, _, _, history, targets = trained(update=False)

    np.testing.assert_array_equal(targets, np.eye(3)[labels])
    np.testing.assert_allclose(history[:, -2:].sum(axis=2), 1.0, atol=1e-6)


# ---- the method ---------------------------------------------------------------------------------


def run_round(made, stage, number, state=None):
    context = made.round(number, stage=stage.name)
    state = State(groups=dict.fromkeys(range(len(made.labels)), 0)) if state is None else state
    return stage.step(context, state), context


def memory_task(client, memory, arguments):
    return memory, dict(memory)


def test_clients_keep_predictions_and_labels_for_themselves(bench):
    made = bench([[0, 0, 1], [1, 0], []], "model.name=logistic", "train.epochs=1", classes=2)
    _, warm, train = JointOptimization(history=3).stages(made.config)

    state, context = run_round(made, warm, 0)
    first = made.federation.map(memory_task)
    state, later = run_round(made, train, 0, state)
    second = made.federation.map(memory_task)

    assert "selection" not in context.entry
    assert [set(memory) for memory in first.values()] == [{"joint/history"}] * 3
    for k, own in second.items():
        assert own["joint/history"].shape == (len(made.labels[k]), 3, 2)
        past = own["joint/history"][:, 1:].mean(axis=1)  # two visits
        np.testing.assert_allclose(own["joint/targets"], past, atol=1e-6)
    # Labels count as given right; those that the soft ones still agree with are judged clean.
    agree = [second[k]["joint/targets"].argmax(axis=1) == made.labels[k] for k in (0, 1)]
    assert later.entry["selection"]["recall"] == pytest.approx(np.mean([m.mean() for m in agree]))
    assert 0 < later.entry["selection"]["recall"] < 1


@pytest.mark.parametrize(
    "wrong", [{"history": 0}, {"prior_weight": -1.0}, {"entropy_weight": -1}, {"warmup_rounds": -1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        JointOptimization(**wrong)


@pytest.mark.parametrize(
    ("override", "warmup", "word"),
    [
        ("train.rounds=3", 3, "train.rounds"),
        ("train.mixup=1.0", 1, "train.mixup"),
        ("server.optimizer=fednova", 1, "server.optimizer"),
    ],
)
def test_runs_that_cannot_work_are_refused(bench, override, warmup, word):
    made = bench([[0, 1]], override, classes=2)

    method = JointOptimization(warmup_rounds=warmup)
    with pytest.raises(ConfigError, match=word):
        method.check(made.config, classes=2, dimensions={})


def test_the_warm_up_is_a_fifth_of_the_rounds_or_what_is_asked_for(bench):
    made = bench([[0, 1]], "train.rounds=20", classes=2)

    for wanted, rounds in ((None, [1, 4, 16]), (7, [1, 7, 13]), (0, [1, 20])):
        stages = JointOptimization(warmup_rounds=wanted).stages(made.config)
        assert [stage.rounds for stage in stages] == rounds

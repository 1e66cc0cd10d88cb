"""SELFIE: who is clean, who is repaired, one batch as a slow loop, what a client keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.methods.selfie import EMPTY, HISTORY, LABELS, Selfie
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State, Where
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.server import ServerSettings

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("logistic")()
METHOD = Selfie(noise_rate=0.3, uncertainty=0.05, history=3)


def trained(history, labels=None, *, select=True, samples=8):
    """Weights before, images, given labels, model after, what is known, who was clean, the loss."""
    rng = stream(0, "test.selfie")
    images = rng.normal(size=(samples, 1, 2, 2)).astype(np.float32)
    given = rng.integers(0, CLASSES, samples)
    flat = rng.normal(size=15).astype(np.float32)
    tree = {"trainable": flat, "buffers": np.zeros(0, np.float32)}
    repaired = np.full(samples, EMPTY) if labels is None else labels
    train = TrainSettings(epochs=1, batch_size=8, lr=LR, order="stored")
    with open_session(
        MODEL, [tree], images, given, train, rng=stream(1, "test"), classes=CLASSES
    ) as own:
        own.sent = {"server": ServerSettings()}
        memory = {HISTORY: history, LABELS: repaired}
        where = Where("train" if select else "warmup", 0, 4)
        known, sent = METHOD.train(own, memory, where)
        clean = sent.reply["selected"]
        return flat, images, given, sent.tree["trainable"], known, clean, sent.reply["loss"]


def slow_rows(flat, images):
    weight, bias = flat[:12].reshape(3, 4), flat[12:]
    return [torch.softmax(weight @ torch.tensor(x) + bias, 0) for x in images.reshape(-1, 4)]


def slow_selfie(flat, images, given, history, repaired):
    """Weights after one batch, clean set, repaired labels; one sample after another."""
    flat = torch.tensor(flat, requires_grad=True)
    rows = slow_rows(flat, images)
    losses = [-torch.log(p[y]) for p, y in zip(rows, given, strict=True)]
    clean = sorted(range(8), key=lambda i: losses[i].item())[:6]  # ceil(0.7 * 8)
    repaired = list(repaired)
    for i, p in enumerate(rows):
        past = [*history[i][1:], int(p.argmax())]
        if EMPTY not in past and len(set(past)) == 1:  # the only way to an entropy of at most 0.05
            repaired[i] = past[0]
    parts = []
    for i, p in enumerate(rows):
        if repaired[i] != EMPTY:
            parts.append(-torch.log(p[repaired[i]]))
        elif i in clean:
            parts.append(losses[i])
    (gradient,) = torch.autograd.grad(sum(parts) / len(parts), flat)
    return (flat - LR * gradient).detach().numpy(), clean, repaired, len(parts)


def agreed_history(flat, images):
    """Two past predictions: as now for the even samples, another class in between for the odd."""
    now = [int(p.argmax()) for p in slow_rows(torch.tensor(flat), images)]
    rows = [[n, n, n] if i % 2 == 0 else [n, (n + 1) % 3, n] for i, n in enumerate(now)]
    return np.array(rows)


def test_a_batch_follows_the_algorithm():
    flat, images, given, *_ = trained(np.full((8, 3), EMPTY), select=False)
    history = agreed_history(flat, images)
    earlier = np.full(8, EMPTY)
    earlier[1] = (given[1] + 1) % 3  # repaired in an earlier round, stays so

    _, _, _, after, known, clean, _ = trained(history, earlier)

    expected, small, repaired, count = slow_selfie(flat, images, given, history, earlier)
    np.testing.assert_allclose(after, expected, atol=1e-6)
    assert np.flatnonzero(clean).tolist() == sorted(small)
    assert known[LABELS].tolist() == repaired
    assert (known[LABELS] != EMPTY).tolist() == [True, True] + [True, False] * 3
    assert count > 6  # the repaired ones came in addition
    assert (known[LABELS][known[LABELS] != EMPTY] != given[known[LABELS] != EMPTY]).any()


def test_predictions_join_the_history():
    start = np.full((8, 3), EMPTY)
    flat, images, _, _, known, *_ = trained(start)

    now = [int(p.argmax()) for p in slow_rows(torch.tensor(flat), images)]
    assert known[HISTORY][:, -1].tolist() == now
    assert (known[HISTORY][:, :2] == EMPTY).all()
    assert (known[LABELS] == EMPTY).all()  # not full: nobody is repaired


def test_warm_up_trains_on_all_given_labels():
    flat, images, given, after, known, clean, loss = trained(np.zeros((8, 3), int), select=False)

    flat = torch.tensor(flat, requires_grad=True)
    rows = slow_rows(flat, images)
    mean = sum(-torch.log(p[y]) for p, y in zip(rows, given, strict=True)) / 8
    (gradient,) = torch.autograd.grad(mean, flat)
    np.testing.assert_allclose(after, (flat - LR * gradient).detach().numpy(), atol=1e-6)
    assert clean is None  # nobody was judged
    assert (known[LABELS] == EMPTY).all()
    assert loss == pytest.approx(mean.item(), abs=1e-6)


def test_one_sample_is_clean():
    # ceil(0.7 * 1) = 1, where floor would leave nothing.
    *_, clean, _ = trained(np.full((1, 3), EMPTY), samples=1)

    assert clean.tolist() == [True]


# ---- the method ---------------------------------------------------------------------------------


def memory_task(client, memory, arguments):
    return memory, dict(memory)


def run_rounds(made, method):
    """Run a round of warm-up and one after it; return the memories and the second record."""
    _, warm, train = method.stages(made.config)
    state = State(groups=dict.fromkeys(range(len(made.labels)), 0))
    context = made.round(stage="warmup")
    state = warm.step(context, state)
    assert "selection" not in context.entry
    context = made.round()
    train.step(context, state)
    return made.federation.map(memory_task), context.entry


def test_clients_keep_predictions_and_repaired_labels(bench):
    made = bench([[0, 0, 1], [1, 0], []], "model.name=logistic", "train.epochs=1", classes=2)

    kept, entry = run_rounds(made, Selfie(history=2, noise_rate=0.5))

    for k, own in kept.items():
        history, labels = own["selfie/history"], own["selfie/labels"]
        assert history.shape == (len(made.labels[k]), 2)
        agree = history[:, 0] == history[:, 1]
        assert labels.tolist() == np.where(agree, history[:, 0], EMPTY).tolist()
    # ceil(1.5) of 3 and 1 of 2 are clean, all of them right.
    assert entry["selection"]["recall"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_the_released_code_starts_with_class_0(bench):
    made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)

    kept, _ = run_rounds(made, Selfie(history=4, parity="code"))

    assert all((own["selfie/history"][:, :2] == 0).all() for own in kept.values())


@pytest.mark.parametrize(
    "wrong",
    [{"noise_rate": 1.0}, {"history": 0}, {"uncertainty": -0.1}, {"warmup_rounds": -1}],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Selfie(**wrong)

"""DivideMix: its targets and loss by hand, an epoch of both networks, parts that are too small."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raysim.core.selection import clean_posterior
from raysim.errors import ConfigError
from raysim.methods.co_teaching import teach
from raysim.methods.dividemix import (
    DivideMix,
    co_refined,
    mean_prediction,
    plain_losses,
    semi_supervised,
)
from raysim.models.evaluation import logits, sample_losses
from raysim.models.params import initial_tree
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("logistic")()
TRAIN = TrainSettings(epochs=1, batch_size=16, lr=LR, order="stored")


def logits_of(*rows):
    """Logits whose softmax are ``rows``."""
    return torch.log(torch.tensor(rows))


@pytest.mark.parametrize(("elapsed", "weight"), [(0, 0.0), (4, 6.25), (8.5, 13.28125), (16, 25.0)])
def test_the_weight_of_samples_without_labels_grows(elapsed, weight):
    assert DivideMix().strength(elapsed) == weight
    assert DivideMix().strength(elapsed + 100) == 25.0


def test_without_a_ramp_the_weight_is_there_at_once():
    assert DivideMix(ramp_rounds=0).strength(0) == 25.0


def test_a_guess_is_the_mean_over_networks_and_views():
    # Four softmaxes: (0.8, 0.2), (0.6, 0.4), (0.2, 0.8), (0.4, 0.6); mean (0.5, 0.5).
    views = (torch.zeros(1), torch.ones(1))
    first = {0: logits_of((0.8, 0.2)), 1: logits_of((0.6, 0.4))}
    second = {0: logits_of((0.2, 0.8)), 1: logits_of((0.4, 0.6))}
    networks = [lambda v, own=own: own[int(v.item())] for own in (first, second)]

    assert mean_prediction(networks, views)[0].tolist() == pytest.approx([0.5, 0.5])
    # Trust 0.9 in label 1, and 0.1 of the first network's mean (0.7, 0.3).
    found = co_refined(networks[0], views, labels=torch.tensor([1]), trust=torch.tensor([0.9]))
    assert found[0].tolist() == pytest.approx([0.07, 0.93])


def test_the_loss_worked_by_hand():
    # L_x = -log 0.5. L_u: (0.9 - 1)^2 and (0.1 - 0)^2, mean 0.01. Mean prediction (0.7, 0.3).
    logits = logits_of((0.5, 0.5), (0.9, 0.1))
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0]])

    found = semi_supervised(logits, targets, 1, 10.0)

    divergence = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3)
    assert found.item() == pytest.approx(math.log(2) + 0.1 + divergence, abs=1e-6)


# ---- an epoch -----------------------------------------------------------------------------------


def client(samples=16):
    """Two networks, images and labels of which some are far from what the networks say."""
    rng = stream(4, "test.dividemix")
    images = rng.normal(size=(samples, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, CLASSES, samples)
    trees = [
        {
            "trainable": (2 * rng.normal(size=15)).astype(np.float32),
            "buffers": np.zeros(0, np.float32),
        }
        for _ in range(2)
    ]
    return images, labels, trees


def opened(images, labels, trees, train=TRAIN, model=MODEL):
    return open_session(model, trees, images, labels, train, rng=stream(1, "test"), classes=CLASSES)


def slow_probabilities(flat, images):
    weight, bias = flat[:12].reshape(3, 4), flat[12:]
    rows = [torch.softmax(weight @ x + bias, dim=0) for x in images.reshape(len(images), 4)]
    return torch.stack(rows)


def slow_posterior(flat, images, labels):
    p = slow_probabilities(flat, torch.tensor(images))
    return clean_posterior(np.array([-math.log(p[i, y]) for i, y in enumerate(labels)]))


def slow_sharp(p):
    return p**2 / (p**2).sum(dim=1, keepdim=True)


def slow_network(mine, peer, images, labels, clean, rng, weight):
    """One network after its epoch of one batch; both views are the images themselves."""
    x, u = np.flatnonzero(clean > 0.5), np.flatnonzero(clean <= 0.5)
    all_images = torch.tensor(images)
    p, q = slow_probabilities(mine, all_images), slow_probabilities(peer, all_images)
    trust = torch.tensor(clean[x], dtype=torch.float32)[:, None]
    known = slow_sharp(trust * torch.eye(3)[labels[x]] + (1 - trust) * p[x])
    guessed = slow_sharp((p[u] + q[u]) / 2)
    rows = np.concatenate([x, x, u, u])
    targets = torch.cat([known, known, guessed, guessed])
    share = rng.beta(4.0, 4.0)
    share = max(share, 1 - share)
    order = rng.permutation(len(rows))
    flat = mine.clone().requires_grad_(True)
    inputs = share * all_images[rows] + (1 - share) * all_images[rows[order]]
    wanted = share * targets + (1 - share) * targets[order]
    found = slow_probabilities(flat, inputs)
    count = 2 * len(x)
    loss = -(wanted[:count] * torch.log(found[:count])).sum() / count
    loss = loss + weight * ((found[count:] - wanted[count:]) ** 2).sum() / (3 * 2 * len(u))
    mean = found.mean(dim=0)
    loss = loss + sum(math.log(1 / 3) / 3 - torch.log(mean[c]) / 3 for c in range(3))
    (gradient,) = torch.autograd.grad(loss, flat)
    return mine - LR * gradient, loss.item()


def test_each_network_learns_from_the_parts_of_the_other_one():
    images, labels, trees = client()

    with opened(images, labels, trees) as session:
        trusted = DivideMix().train_divided(session, round_id=8)
        after, loss = [session.tree(i)["trainable"] for i in (0, 1)], session.loss

    rng = stream(1, "test")
    rng.integers(2**63)  # the session seeds torch by it
    flats = [torch.tensor(tree["trainable"]) for tree in trees]
    clean = [slow_posterior(flat, images, labels) for flat in flats]
    assert all(2 <= (own > 0.5).sum() <= 14 for own in clean)
    assert ((clean[0] > 0.5) != (clean[1] > 0.5)).any()
    weight = 25 * 8 / 16  # half of the ramp, first batch
    flats[0], first = slow_network(*flats, images, labels, clean[1], rng, weight)
    flats[1], _ = slow_network(flats[1], flats[0], images, labels, clean[0], rng, weight)
    for found, flat in zip(after, flats, strict=True):
        np.testing.assert_allclose(found, flat.numpy(), atol=1e-5)
    assert loss == pytest.approx(first, abs=1e-5)
    assert trusted.tolist() == (clean[0] > 0.5).tolist()


def test_the_peer_stays_as_it_is():
    model = MODELS.get("small_cnn")()
    rng = stream(0, "test.dividemix.peer")
    images, labels = rng.normal(size=(12, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 12)
    trees = [initial_tree(model, (8, 8, 1), CLASSES, seed) for seed in (0, 1)]
    clean = np.array([0.9, 0.2] * 6)
    with opened(images, labels, trees, model=model) as session:
        sizes = [size for size, _ in DivideMix().mixed_steps(session, 0, clean, round_id=0)]

        assert sizes == [6]
        np.testing.assert_array_equal(session.tree(1)["buffers"], trees[1]["buffers"])
        assert not np.array_equal(session.tree(0)["buffers"], trees[0]["buffers"])
        assert session.networks[1].training


def test_a_batch_of_one_sample_is_left_out_and_the_other_part_goes_round():
    images, labels, trees = client(9)
    train = TrainSettings(epochs=1, batch_size=2, lr=LR, order="stored")
    clean = np.array([0.9] * 5 + [0.1] * 4)
    with opened(images, labels, trees, train=train) as session:
        # 2, 2 and 1 with labels; 2 and 2 without.
        sizes = [size for size, _ in DivideMix().mixed_steps(session, 0, clean, round_id=0)]
        other = [size for size, _ in DivideMix().mixed_steps(session, 1, 1 - clean, round_id=0)]

    assert sizes == [2, 2]
    assert other == [2, 2]


@pytest.mark.parametrize("samples", [0, 1, 2, 6])
def test_samples_that_cannot_be_divided_are_all_trusted(samples):
    # Equal images and labels have equal losses; of two samples no part has two.
    _, _, trees = client()
    images = np.zeros((samples, 1, 2, 2), np.float32)
    labels = np.ones(samples, dtype=np.int64)
    if samples == 2:
        labels[0] = 0

    with opened(images, labels, trees) as session:
        trusted = DivideMix().train_divided(session, round_id=3)
        found = [session.tree(i)["trainable"] for i in (0, 1)]
    with opened(images, labels, trees) as session:
        teach(session, rate=0.0)
        expected = [session.tree(i)["trainable"] for i in (0, 1)]

    np.testing.assert_array_equal(found, expected)
    assert trusted.shape == (samples,)
    assert samples == 2 or trusted.all()


def test_losses_are_those_of_the_evaluation_mode():
    model = MODELS.get("small_cnn")()
    rng = stream(0, "test.dividemix.losses")
    images, labels = rng.normal(size=(7, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 7)
    tree = initial_tree(model, (8, 8, 1), CLASSES, 0)
    with opened(images, labels, [tree, tree], model=model) as session:
        found = plain_losses(session, 1)

    expected = sample_losses(logits(model, tree, images, classes=CLASSES), labels)
    np.testing.assert_allclose(found, expected, atol=1e-6)


# ---- the method ---------------------------------------------------------------------------------


def test_warm_up_trains_both_networks_and_judges_nothing(bench):
    made = bench([[0, 0, 1], [1, 0], []], "model.name=logistic", "train.epochs=1", classes=2)
    _, warm, train = DivideMix().stages(made.config)
    first, second = made.round(stage="warmup"), made.round()

    state = warm.step(first, State(groups=dict.fromkeys(range(3), 0)))
    state = train.step(second, state)

    assert "selection" not in first.entry
    assert second.entry["selection"]["precision"] == 1.0  # given labels count as the true ones
    tree = made.federation.get(state.models["group/0"])
    assert set(tree) == {"trainable", "buffers", "second/trainable", "second/buffers"}
    assert second.entry["bytes"]["up"] == {"model": 240}  # 3 clients, 2 networks of 10 numbers


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.05},
        {"threshold": 1.0},
        {"temperature": 0.0},
        {"mixing": 0.0},
        {"unlabelled": -1.0},
        {"ramp_rounds": -1},
        {"mixture_steps": 0},
        {"warmup_rounds": -1},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        DivideMix(**wrong)


def test_batches_of_one_sample_are_refused(bench):
    made = bench([[0, 1]], "train.batch_size=1", classes=2)

    with pytest.raises(ConfigError, match=r"train\.batch_size"):
        DivideMix().check(made.config, classes=2, dimensions={})

"""RHFL's mathematics: weights and mixtures written as loops, one step on public images."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysim.methods.rhfl import aligned, confidence_weights, others_mixture, published
from raysim.models.params import initial_tree, load_tree, module_for
from raysim.models.zoo import Logistic, SmallCnn
from raysim.seeding import stream

UNKNOWN = math.nan
SHAPE, CLASSES = (8, 8, 1), 3
SHARED = {"classes": CLASSES, "train_mode": True, "device": "cpu"}

# ---- client confidence and the mixture of the others -----------------------------------------


def by_loops(losses, previous, factor):
    """Step 2 of raysim/docs/sheets/rhfl.md, with sum |q|."""
    count = len(losses)
    q = [(before - now) / now for before, now in zip(previous, losses, strict=True)]
    u = [1 / (count - 1) + factor * own / sum(abs(x) for x in q) for own in q]
    return [math.exp(x) / sum(math.exp(y) for y in u) for x in u]


@given(st.integers(0, 10_000))
def test_weights_follow_the_equation(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    losses, previous = rng.uniform(0.1, 5, count), rng.uniform(0.1, 5, count)

    found = confidence_weights(losses, previous, factor=0.5)

    np.testing.assert_allclose(found, by_loops(losses, previous, 0.5), rtol=1e-9)


def test_weights_worked_by_hand():
    # q = (2 - 1) / 1, (1 - 2) / 2, 0 = 1, -1/2, 0; sum |q| = 3/2; u = 1/2 + q / 3 =
    # 0.8333, 0.3333, 0.5; exp: 2.3010, 1.3956, 1.6487, sum 5.3453.
    losses, previous = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])

    found = confidence_weights(losses, previous, factor=0.5)

    np.testing.assert_allclose(found, [0.4305, 0.2611, 0.3084], atol=1e-4)


def test_at_first_all_weigh_one_over_the_others():
    found = confidence_weights(np.array([1.0, 5.0, 2.0]), np.full(3, UNKNOWN), factor=0.5)

    assert found.tolist() == [0.5, 0.5, 0.5]


def test_who_has_no_earlier_loss_counts_as_unchanged():
    losses = np.array([1.0, 2.0, 3.0])

    found = confidence_weights(losses, np.array([2.0, 1.0, UNKNOWN]), factor=0.5)

    expected = confidence_weights(losses, np.array([2.0, 1.0, 3.0]), factor=0.5)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("losses", "previous"), [([1.0, 2.0], [1.0, 2.0]), ([0.0, 0.0], [0.0, 0.0])]
)
def test_losses_that_do_not_move_or_vanish_give_equal_weights(losses, previous):
    found = confidence_weights(np.array(losses), np.array(previous), factor=0.5)

    assert found.tolist() == [0.5, 0.5]


def test_factor_zero_makes_all_alike():
    found = confidence_weights(np.array([1.0, 2.0]), np.array([9.0, 0.1]), factor=0.0)

    assert found.tolist() == [0.5, 0.5]


def test_opposite_changes_keep_their_signs():
    # The released code divides by sum q = 0.5 - 0.5: here the one that improved weighs more.
    found = confidence_weights(np.array([1.0, 1.0]), np.array([1.5, 0.5]), factor=0.5)

    assert found[0] > 0.5 > found[1]


@pytest.mark.parametrize("count", [0, 1])
def test_who_is_alone_weighs_nothing(count):
    assert confidence_weights(np.ones(count), np.ones(count), factor=0.5).tolist() == [0.0] * count


def test_the_mixture_leaves_out_oneself():
    rng = np.random.default_rng(0)
    outputs, weights = rng.dirichlet(np.ones(3), (4, 5)), rng.uniform(size=4)

    found = others_mixture(outputs, weights)

    for k in range(4):
        expected = sum(weights[i] * outputs[i] for i in range(4) if i != k)
        np.testing.assert_allclose(found[k], expected, atol=1e-12)


def test_the_gradient_towards_a_mixture_is_that_of_the_weighted_divergences():
    # sum_i w_i KL(p_i || p) and -sum_c t_c log p_c with t = sum_i w_i p_i differ by a constant.
    rng = np.random.default_rng(1)
    outputs, weights = rng.dirichlet(np.ones(3), (4, 1)), rng.uniform(size=4)
    target = others_mixture(outputs, weights)[0, 0]

    def divergence(own):
        return sum(
            weights[i] * sum(outputs[i, 0] * np.log(outputs[i, 0] / own)) for i in range(1, 4)
        )

    one, two = rng.dirichlet(np.ones(3), 2)
    moved = -(target * np.log(one)).sum() + (target * np.log(two)).sum()
    assert moved == pytest.approx(divergence(one) - divergence(two))


# ---- a step on public images -------------------------------------------------------------------


def images(samples=6):
    return stream(0, "test.distillation").standard_normal((samples, 1, 8, 8)).astype(np.float32)


def mixture(samples=6, mass=0.8):
    """Targets whose shares do not add up to one: the client's own weight is left out."""
    return mass * stream(1, "test.distillation").dirichlet(np.ones(CLASSES), samples)


def divergence(model, tree, targets):
    """-mean sum_c t_c log p_c in float64, from what the model publishes."""
    _, outputs = published(model, tree, images(), **SHARED)
    return -(targets * np.log(outputs.astype(np.float64))).sum(axis=1).mean()


def test_published_outputs_are_the_softmax_of_the_logits():
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)

    same, outputs = published(Logistic(), tree, images(), **SHARED)

    weights = tree["trainable"][: 64 * CLASSES].reshape(CLASSES, 64).astype(np.float64)
    logits = images().reshape(6, 64) @ weights.T + tree["trainable"][64 * CLASSES :]
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    assert outputs.dtype == np.float32  # what the byte counts assume
    assert same["trainable"].tobytes() == tree["trainable"].tobytes()


def test_a_step_has_the_size_of_lr_against_the_sign_of_the_gradient():
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)
    targets = mixture()

    new, loss = aligned(Logistic(), tree, images(), targets, lr=0.01, **SHARED)

    module = module_for(Logistic(), SHAPE, CLASSES)
    load_tree(module, tree)
    found = torch.log_softmax(module(torch.tensor(images())), dim=1)
    objective = -(torch.tensor(targets, dtype=torch.float32) * found).sum(dim=1).mean()
    flat = [g.reshape(-1) for g in torch.autograd.grad(objective, list(module.parameters()))]
    gradient = torch.cat(flat).numpy()
    # Adam's first step is lr g / (|g| + 1e-8).
    moved = new["trainable"] - tree["trainable"]
    np.testing.assert_allclose(moved, -0.01 * gradient / (np.abs(gradient) + 1e-8), atol=1e-6)
    assert loss == pytest.approx(objective.item(), abs=1e-6)


def test_the_gradient_is_that_of_the_weighted_divergences():
    # Two others with weights 0.5 and 0.3; their divergences from the own outputs, by autograd.
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)
    others = stream(2, "test.distillation").dirichlet(np.ones(CLASSES), (2, 6))
    module = module_for(Logistic(), SHAPE, CLASSES)
    load_tree(module, tree)
    found = torch.log_softmax(module(torch.tensor(images())), dim=1)
    total = torch.zeros(())
    for weight, outputs in zip((0.5, 0.3), others, strict=True):
        p = torch.tensor(outputs, dtype=torch.float32)
        total = total + weight * (p * (p.log() - found)).sum(dim=1).mean()
    flat = [g.reshape(-1) for g in torch.autograd.grad(total, list(module.parameters()))]
    gradient = torch.cat(flat).numpy()

    mixed = 0.5 * others[0] + 0.3 * others[1]
    new, _ = aligned(Logistic(), tree, images(), mixed, lr=0.01, **SHARED)

    moved = new["trainable"] - tree["trainable"]
    clear = np.abs(gradient) > 1e-5
    assert clear.mean() > 0.9
    assert np.array_equal(np.sign(moved[clear]), -np.sign(gradient[clear]))


def test_steps_bring_the_outputs_closer_to_the_targets():
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)
    targets = mixture()
    before = divergence(SmallCnn(), tree, targets)

    for _ in range(5):
        tree, _ = aligned(SmallCnn(), tree, images(), targets, lr=0.001, **SHARED)

    assert divergence(SmallCnn(), tree, targets) < before - 0.05


def test_a_batch_moves_the_statistics_of_batch_norm_once():
    # The released code passes forward once per batch: outputs and gradient come from that pass.
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)

    moved, _ = published(SmallCnn(), tree, images(), **SHARED)
    new, _ = aligned(SmallCnn(), moved, images(), mixture(), lr=0.01, **SHARED)

    assert moved["buffers"].tobytes() != tree["buffers"].tobytes()
    assert new["buffers"].tobytes() == moved["buffers"].tobytes()
    assert new["trainable"].tobytes() != tree["trainable"].tobytes()


def test_frozen_statistics_stay_and_are_what_normalises():
    tree = initial_tree(SmallCnn(), SHAPE, CLASSES, seed=0)
    frozen = {**SHARED, "train_mode": False}

    kept, outputs = published(SmallCnn(), tree, images(), **frozen)
    new, _ = aligned(SmallCnn(), tree, images(), mixture(), lr=0.01, **frozen)

    assert kept["buffers"].tobytes() == new["buffers"].tobytes() == tree["buffers"].tobytes()
    assert not np.allclose(outputs, published(SmallCnn(), tree, images(), **SHARED)[1], atol=1e-3)

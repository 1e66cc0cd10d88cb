"""RHFL's step on public images: what is published, and where the step goes."""

import numpy as np
import pytest
import torch

from raysim.models.distillation import aligned, published
from raysim.models.params import initial_tree, load_tree, module_for
from raysim.models.zoo import Logistic, SmallCnn
from raysim.seeding import stream

SHAPE, CLASSES = (8, 8, 1), 3
SHARED = {"classes": CLASSES, "train_mode": True, "device": "cpu"}


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

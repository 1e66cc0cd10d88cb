"""Soft labels: losses, sharpening and mixing, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from raysim.models.soft_targets import (
    mixed,
    prediction_entropy,
    prior_divergence,
    sharpened,
    soft_cross_entropy,
)


def logits_of(*rows):
    """Logits whose softmax are ``rows``."""
    return torch.log(torch.tensor(rows, dtype=torch.float64))


def test_soft_cross_entropy_worked_by_hand():
    # -(0.5 log 0.5 + 0.5 log 0.25) = 1.5 log 2, and -log 0.25 = 2 log 2; mean 1.75 log 2.
    logits = logits_of((0.5, 0.25, 0.25), (0.5, 0.25, 0.25))
    targets = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])

    assert soft_cross_entropy(logits, targets).item() == pytest.approx(1.75 * math.log(2))


def test_entropy_worked_by_hand():
    # 1.5 log 2 for (1/2, 1/4, 1/4), log 3 for the uniform row.
    found = prediction_entropy(logits_of((0.5, 0.25, 0.25), (1 / 3, 1 / 3, 1 / 3)))

    assert found.item() == pytest.approx((1.5 * math.log(2) + math.log(3)) / 2)


def test_the_divergence_is_of_the_mean_prediction_from_the_prior():
    # Mean of (0.9, 0.1) and (0.3, 0.7) is (0.6, 0.4).
    logits = logits_of((0.9, 0.1), (0.3, 0.7))

    uniform = 0.5 * math.log(0.5 / 0.6) + 0.5 * math.log(0.5 / 0.4)
    assert prior_divergence(logits).item() == pytest.approx(uniform)
    one_sided = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert prior_divergence(logits, one_sided).item() == pytest.approx(math.log(1 / 0.6))


def test_a_prediction_that_is_certain_keeps_the_divergence_finite():
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)

    found = prior_divergence(logits)

    assert math.isfinite(found.item())
    assert torch.isfinite(torch.autograd.grad(found, logits)[0]).all()


def test_sharpening_worked_by_hand():
    # Squares (0.64, 0.04) over their sum.
    found = sharpened(torch.tensor([[0.8, 0.2]], dtype=torch.float64), 0.5)

    assert found[0].tolist() == pytest.approx([0.64 / 0.68, 0.04 / 0.68])


def test_mixing_worked_by_hand():
    values = torch.tensor([[1.0, 0.0], [0.0, 2.0]])

    found = mixed(values, torch.tensor([1, 1]), 0.75)

    assert found.tolist() == [[0.75, 0.5], [0.0, 2.0]]

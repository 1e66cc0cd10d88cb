"""The losses of RHFL and ClipFL against their equations, one sample and one class at a time."""

import math
import pickle

import numpy as np
import pytest
import torch

from raysim.methods.rhfl import SymmetricCrossEntropy
from raysim.models.losses import SmoothedCrossEntropy
from raysim.models.training import Batch
from raysim.seeding import stream
from raysim.settings import SettingError


def batch(labels):
    labels = torch.tensor(labels)
    return Batch(index=np.arange(len(labels)), images=torch.zeros(0), labels=labels)


def random_case(seed, samples=6, classes=4):
    rng = stream(seed, "test.losses")
    return rng.normal(0, 2, (samples, classes)), rng.integers(0, classes, samples)


def softmax(row, temperature=1.0):
    exponents = [math.exp(z / temperature) for z in row]
    return [e / sum(exponents) for e in exponents]


def symmetric_by_loops(logits, labels, a, b):
    """raysim/docs/sheets/rhfl.md, "Losses"."""
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        p = softmax(row)
        total += a * -math.log(p[label])
        for c, own in enumerate(p):
            target = 1.0 if c == label else 1e-4
            total += b * max(own, 1e-7) * -math.log(target)
    return total / len(labels)


def smoothed_by_loops(logits, labels, eps, temperature):
    """raysim/docs/sheets/clipfl.md, "Loss"."""
    total = 0.0
    for row, label in zip(logits, labels, strict=True):
        for c, own in enumerate(softmax(row, temperature)):
            target = (1 - eps) * (c == label) + eps / len(row)
            total -= target * math.log(own)
    return total / len(labels)


@pytest.mark.parametrize(("forward", "reverse"), [(0.1, 1.0), (0.4, 0.9), (1.0, 0.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_symmetric_cross_entropy_follows_the_equation(seed, forward, reverse):
    logits, labels = random_case(seed)
    loss = SymmetricCrossEntropy(forward=forward, reverse=reverse)

    found = loss(torch.tensor(logits), batch(labels)).item()

    assert found == pytest.approx(symmetric_by_loops(logits, labels, forward, reverse))


def test_symmetric_cross_entropy_worked_by_hand():
    # p = 3/4, 1/4 for logits (log 3, 0) and label 1: CE = -log(1/4) = 1.3863; RCE = 3/4 *
    # -log 1e-4 = 3/4 * 9.2103 = 6.9078. 0.1 * 1.3863 + 6.9078 = 7.0464.
    logits = torch.tensor([[math.log(3.0), 0.0]])

    assert SymmetricCrossEntropy()(logits, batch([1])).item() == pytest.approx(7.0464, abs=1e-4)


def test_the_reverse_part_is_bounded_where_cross_entropy_is_not():
    far = torch.tensor([[100.0, 0.0]])

    only_reverse = SymmetricCrossEntropy(forward=0.0)(far, batch([1])).item()

    assert only_reverse == pytest.approx(-math.log(1e-4), abs=1e-4)
    assert SymmetricCrossEntropy(forward=1.0, reverse=0.0)(far, batch([1])).item() == 100.0


def test_the_mean_over_a_batch_is_that_of_its_rows():
    logits, labels = map(torch.tensor, random_case(3))
    loss = SymmetricCrossEntropy()

    rows = loss.per_sample(logits, labels)

    assert rows.shape == (6,)
    assert loss(logits, batch(labels.tolist())).item() == pytest.approx(rows.mean().item())


@pytest.mark.parametrize(("eps", "temperature"), [(0.1, 10.0), (0.1, 1.0), (0.0, 10.0), (0.0, 1.0)])
def test_smoothed_cross_entropy_follows_the_equation(eps, temperature):
    logits, labels = random_case(2)
    loss = SmoothedCrossEntropy(smoothing=eps, temperature=temperature)

    found = loss(torch.tensor(logits), batch(labels)).item()

    assert found == pytest.approx(smoothed_by_loops(logits, labels, eps, temperature))


def test_smoothed_cross_entropy_worked_by_hand():
    # logits (10 log 3, 0) at T = 10: p = 3/4, 1/4. Targets of label 0 with eps 0.1 and two
    # classes: 0.95, 0.05. 0.95 * 0.28768 + 0.05 * 1.38629 = 0.34261.
    logits = torch.tensor([[10 * math.log(3.0), 0.0]])

    assert SmoothedCrossEntropy()(logits, batch([0])).item() == pytest.approx(0.34261, abs=1e-5)


def test_the_temperature_shrinks_the_gradient_and_nothing_scales_it_back():
    def gradient(temperature):
        logits = torch.zeros((1, 4), requires_grad=True)
        loss = SmoothedCrossEntropy(smoothing=0.0, temperature=temperature)
        return torch.autograd.grad(loss(logits, batch([2])), logits)[0]

    # Equal logits are equal at any temperature: only the factor 1/T is left.
    torch.testing.assert_close(gradient(10.0), gradient(1.0) / 10)


@pytest.mark.parametrize("loss", [SymmetricCrossEntropy(), SmoothedCrossEntropy()])
def test_losses_travel_to_actors(loss):
    assert pickle.loads(pickle.dumps(loss)) == loss


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SymmetricCrossEntropy(forward=-0.1), "forward"),
        (lambda: SymmetricCrossEntropy(reverse=-1.0), "reverse"),
        (lambda: SmoothedCrossEntropy(smoothing=1.0), "smoothing"),
        (lambda: SmoothedCrossEntropy(temperature=0.0), "temperature"),
    ],
)
def test_knobs_out_of_range_are_refused_with_a_remedy(make, field):
    with pytest.raises(SettingError) as caught:
        make()

    assert caught.value.field == field
    assert caught.value.do

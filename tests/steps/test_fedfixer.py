"""FedFixer: its losses and schedule worked by hand, its step written as a loop."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysim.methods.cores2 import GlobalCores2, confidence_strength, confident_loss, mean_of, sieve
from raysim.methods.fedfixer import FedFixer
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import Where
from raysim.seeding import stream
from raysim.steps.server import ServerSettings


def logits_of(*rows):
    """Logits whose softmax are ``rows``."""
    return torch.log(torch.tensor(rows))


def test_the_confidence_term_rewards_distance_from_the_mean_loss():
    # p = (1/2, 1/4, 1/4): CE = (log 2, 2 log 2, 2 log 2), mean 5/3 log 2.
    found = confident_loss(logits_of((0.5, 0.25, 0.25)), torch.tensor([0]), 2.0)

    assert found.item() == pytest.approx((1 - 2 * 5 / 3) * math.log(2), abs=1e-6)


def test_an_own_prior_weights_the_classes():
    # sum pi CE = 1 * log 2 with all weight on class 0.
    prior = torch.tensor([1.0, 0.0, 0.0])
    found = confident_loss(logits_of((0.5, 0.25, 0.25)), torch.tensor([1]), 1.0, prior)

    assert found.item() == pytest.approx(2 * math.log(2) - math.log(2), abs=1e-6)


def test_the_sieve_keeps_labels_no_worse_than_the_mean():
    # log 0.5 >= mean of the logs, log 0.2 is below it; equal probabilities are kept.
    rows = ((0.5, 0.3, 0.2), (0.5, 0.3, 0.2), (1 / 3, 1 / 3, 1 / 3))

    assert sieve(logits_of(*rows), torch.tensor([0, 2, 1]))[:2].tolist() == [True, False]


def test_equal_to_the_mean_is_kept_unless_strict():
    flat = torch.zeros(1, 2)  # both losses are log 2

    assert sieve(flat, torch.tensor([0])).item()
    assert not sieve(flat, torch.tensor([0]), strict=True).item()


def test_a_label_more_probable_than_chance_is_always_kept():
    # Theorem 1 of FedFixer: p_y > 1 / C implies selection.
    logits = torch.tensor(stream(0, "test.theorem").normal(scale=3.0, size=(500, 4)))
    labels = torch.tensor(stream(1, "test.theorem").integers(0, 4, 500))
    likely = torch.softmax(logits, dim=1).gather(1, labels[:, None])[:, 0] > 0.25

    assert 50 < likely.sum() < 450
    assert sieve(logits, labels)[likely].all()


def test_a_label_that_is_surely_wrong_still_pulls():
    # p_y is e^-30: the floor of 1e-8 belongs to the mean over the classes only.
    logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)

    (gradient,) = torch.autograd.grad(confident_loss(logits, torch.tensor([1]), 2.0).sum(), logits)

    assert gradient[0, 1].item() == pytest.approx(-1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("epoch", "beta"), [(0, 0.0), (3, 0.0), (4, 0.0), (4 + 19, 2.0), (100, 2.0), (4 + 10, 20 / 19)]
)
def test_beta_is_silent_then_grows_then_stays(epoch, beta):
    # E = 2, T_s = 10: 2 floor(10 / 5) = 4 silent epochs, then 20 from 0 to 2.
    found = confidence_strength(epoch, epochs=2, warmup=10, largest=2.0)

    assert found == pytest.approx(beta)


def test_beta_without_warmup_is_there_at_once():
    assert confidence_strength(0, epochs=2, warmup=0, largest=2.0) == 2.0


def test_no_chosen_sample_has_no_gradient():
    losses = torch.tensor([1.0, 2.0], requires_grad=True)

    fit = mean_of(losses, torch.tensor([False, False]))

    assert fit.item() == 0.0
    assert torch.autograd.grad(fit, losses)[0].tolist() == [0.0, 0.0]


# ---- one batch, sample by sample -----------------------------------------------------------------

LR, CLASSES = 0.5, 3
MODEL = MODELS.get("logistic")()
TRAIN = TrainSettings(epochs=1, batch_size=8, lr=LR, order="stored")


def method(**changes) -> FedFixer:
    known = {"warmup": 0, "distance": 1.5, "confidence": 2.0, "personal_lr": 0.5, "inner_steps": 3}
    return FedFixer(**{**known, **changes})


def trained(how: FedFixer, *, round_id: int, lr: float = LR):
    """Weights of both before, images, labels, and both networks after one batch."""
    rng = stream(0, "test.fedfixer")
    images = rng.normal(size=(8, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 8)
    flat = rng.normal(size=(2, 15)).astype(np.float32)  # unlike weights select unlike samples
    start = [{"trainable": own, "buffers": np.zeros(0, np.float32)} for own in flat]
    with open_session(
        MODEL, start, images, labels, replace(TRAIN, lr=lr), rng=stream(1, "test"), classes=CLASSES
    ) as own:
        _, sent = how.train(own, {}, Where("train", round_id, 10))
        count, mask = sent.reply["kept"], sent.reply["selected"]
        return flat, images, labels, own.tree(0), own.tree(1), count, mask


def slow_losses(flat, images, labels, beta):
    """Loss per sample and selection, one sample after another (autograd on a flat vector)."""
    weight, bias = flat[:12].reshape(3, 4), flat[12:]
    losses, kept = [], []
    for image, label in zip(images.reshape(8, 4), labels, strict=True):
        p = torch.softmax(weight @ torch.tensor(image) + bias, dim=0)
        mean = sum(-torch.log(p[c] + 1e-8) for c in range(3)) / 3
        own = -torch.log(p[label])
        losses.append(own - beta * mean)
        kept.append(bool(own - mean <= 0))
    return losses, kept


def slow_gradient(flat, images, labels, beta, chosen):
    flat = flat.clone().requires_grad_(True)
    losses, _ = slow_losses(flat, images, labels, beta)
    picked = [loss for loss, keep in zip(losses, chosen, strict=True) if keep]
    (found,) = torch.autograd.grad(sum(picked) / len(picked), flat)
    return found


@pytest.mark.parametrize("alternate", [True, False])
def test_a_batch_follows_the_sheet(alternate):
    start, images, labels, shared, personal, count, mask = trained(
        method(without="nothing" if alternate else "alternation"), round_id=7
    )
    beta, eta = 2.0, LR / 3.0  # warm-up 0: beta is there at once; steps are divided by 1 + beta
    zeta = 0.5 * eta

    w, theta = torch.tensor(start)
    _, by_w = slow_losses(w, images, labels, beta)
    _, at_first = slow_losses(theta, images, labels, beta)
    for _ in range(3):
        _, by_theta = slow_losses(theta, images, labels, beta)
        assert by_w != by_theta
        gradient = slow_gradient(theta, images, labels, beta, by_w if alternate else by_theta)
        theta = theta - zeta * (gradient + 1.5 * (theta - w) + 0.001 * theta)
    chosen = by_theta if alternate else by_w
    gradient = slow_gradient(w, images, labels, beta, chosen)
    w = w - eta * 1.5 * (w - theta) - zeta * gradient

    assert at_first != by_theta
    np.testing.assert_allclose(personal["trainable"], theta.numpy(), atol=1e-6)
    np.testing.assert_allclose(shared["trainable"], w.numpy(), atol=1e-6)
    assert mask.tolist() == chosen
    assert count == sum(chosen)


@pytest.mark.parametrize("alternate", [True, False])
def test_the_printed_algorithm_pulls_before_the_gradient(alternate):
    how = method(parity="paper", without="nothing" if alternate else "alternation")
    start, images, labels, shared, personal, _, mask = trained(how, round_id=7)

    w, theta = torch.tensor(start)
    _, by_w = slow_losses(w, images, labels, 1.0)
    _, by_theta = slow_losses(theta, images, labels, 1.0)
    prior = np.bincount(labels, minlength=3) / 8

    def gradient(flat, chosen):
        flat = flat.clone().requires_grad_(True)
        weight, bias = flat[:12].reshape(3, 4), flat[12:]
        total = 0.0
        for i in np.flatnonzero(chosen):
            p = torch.softmax(weight @ torch.tensor(images.reshape(8, 4)[i]) + bias, dim=0)
            each = -torch.log(p + 1e-8)
            total = total - torch.log(p[labels[i]]) - 2.0 * (each * torch.tensor(prior)).sum()
        (found,) = torch.autograd.grad(total / sum(chosen), flat)
        return found.float()

    assert by_w != by_theta
    for_theta, for_w = (by_w, by_theta) if alternate else (by_theta, by_w)
    theta = theta - 0.5 * LR * (gradient(theta, for_theta) + 1.5 * (theta - w))
    w = w - LR * 1.5 * (w - theta)
    w = w - LR * gradient(w, for_w)
    assert mask.tolist() == for_w
    np.testing.assert_allclose(personal["trainable"], theta.numpy(), atol=1e-6)
    np.testing.assert_allclose(shared["trainable"], w.numpy(), atol=1e-6)


def test_everybody_is_selected_until_the_warm_up_is_over():
    *_, count, mask = trained(method(warmup=3), round_id=3)

    assert mask is None  # nothing was judged
    assert count == 8


def test_without_a_personal_model_it_stays_as_it_was():
    start, *_, personal, _, _ = trained(method(without="personal"), round_id=7)

    np.testing.assert_array_equal(personal["trainable"], start[1])


def test_without_the_distance_term_nothing_pulls():
    *_, shared, personal, count, _ = trained(method(without="distance"), round_id=7)
    *_, other_shared, other_personal, other_count, _ = trained(method(distance=0.0), round_id=7)

    np.testing.assert_array_equal(shared["trainable"], other_shared["trainable"])
    np.testing.assert_array_equal(personal["trainable"], other_personal["trainable"])
    assert count == other_count


def test_without_the_confidence_term_the_steps_still_shrink():
    *_, shared, _, _, _ = trained(method(without="confidence"), round_id=7)
    # No term means beta 0 in the loss; the steps are those of beta 2, a third of those of beta 0.
    third = method(confidence=0.0)
    with_third_of_the_rate = trained(third, round_id=7, lr=LR / 3)[3]

    np.testing.assert_allclose(shared["trainable"], with_third_of_the_rate["trainable"], atol=1e-6)


def test_without_the_personal_model_it_is_cores2():
    start, images, labels, shared, _, _, mask = trained(method(without="personal"), round_id=7)
    tree = {"trainable": start[0], "buffers": np.zeros(0, np.float32)}
    rng = stream(1, "test")
    with open_session(MODEL, [tree], images, labels, TRAIN, rng=rng, classes=CLASSES) as own:
        own.sent = {"server": ServerSettings()}
        alone = GlobalCores2(warmup=0, personal_lr=0.5).train(own, {}, Where("train", 7, 10))[1]

    np.testing.assert_array_equal(shared["trainable"], alone.tree["trainable"])
    assert mask.tolist() == alone.reply["selected"].tolist()


def test_label_shares_are_the_empirical_prior():
    images = np.zeros((4, 1, 2, 2), np.float32)
    tree = {"trainable": np.zeros(15, np.float32), "buffers": np.zeros(0, np.float32)}
    labels = np.array([0, 0, 2, 0])
    with open_session(
        MODEL, [tree], images, labels, TRAIN, rng=stream(0, "test"), classes=3
    ) as own:
        assert own.label_shares().tolist() == [0.75, 0.0, 0.25]


def test_statistics_move_as_often_as_the_network_would_run():
    rng = stream(0, "test.statistics")
    images = rng.normal(2.0, 3.0, size=(8, 1, 8, 8)).astype(np.float32)
    model = MODELS.get("small_cnn")()
    from raysim.models.params import initial_tree

    start = initial_tree(model, (8, 8, 1), 3, 0)
    batch = torch.tensor(images)
    buffers = {}
    for name, times, passes in (("five passes", 1, 5), ("one counts as five", 5, 1)):
        with open_session(
            model, [start], images, np.zeros(8, int), TRAIN, rng=stream(0, "x"), classes=3
        ) as own:
            with own.statistics(0, times=times), torch.no_grad():
                for _ in range(passes):
                    own.networks[0](batch)
            buffers[name] = own.tree()["buffers"]
            own.networks[0](batch)  # afterwards it is as slow as before
            moved = own.tree()["buffers"] - buffers[name]
            assert np.abs(moved).max() < np.abs(buffers[name] - start["buffers"]).max() / 3

    np.testing.assert_allclose(*buffers.values(), rtol=1e-4, atol=1e-5)
    assert np.abs(buffers["five passes"] - start["buffers"]).max() > 0.1

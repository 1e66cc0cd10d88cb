"""FedLSR: its schedule, views and losses by hand, a step as a slow loop, and rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.fedlsr import FedLsr, jensen_shannon, recoloured, second_view, turned
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State, Where
from raysim.seeding import stream
from raysim.settings import SettingError

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("logistic")()


@pytest.mark.parametrize(("round_id", "gamma"), [(0, 0.0), (2, 0.2), (4, 0.4), (19, 0.4)])
def test_the_consistency_grows_over_a_fifth_of_the_rounds(round_id, gamma):
    assert FedLsr().gamma(round_id, 20) == pytest.approx(gamma)
    assert (FedLsr().entropy, FedLsr().parity) == (0.6, "paper")


def test_without_a_warm_up_it_is_there_at_once():
    assert FedLsr(warmup_rounds=0).gamma(0, 20) == 0.4


# ---- views -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 4), (5, 5), (3, 6)])
def test_no_turn_changes_nothing(shape):
    images = stream(0, "test.views").normal(size=(3, 2, *shape)).astype(np.float32)

    np.testing.assert_array_equal(turned(images, np.zeros(3)), images)
    np.testing.assert_array_equal(turned(images, np.full(3, 360.0)), images)


def test_a_right_angle_is_rot90_and_every_image_has_its_own():
    images = stream(0, "test.views").normal(size=(3, 2, 5, 5)).astype(np.float32)

    found = turned(images, np.array([90.0, 0.0, 180.0]))

    quarter = found[0]
    ways = [np.rot90(images[0], turns, axes=(1, 2)) for turns in (1, 3)]
    assert any(np.array_equal(quarter, way) for way in ways)
    np.testing.assert_array_equal(found[1], images[1])
    np.testing.assert_array_equal(found[2], images[2, :, ::-1, ::-1])


def test_the_darkest_pixel_moves_in():
    images = np.ones((1, 1, 9, 9), np.float32)
    images[0, 0, 4, 4] = -0.5

    found = turned(images, np.array([30.0]))

    assert found[0, 0, 0, 0] == -0.5  # a corner comes from outside
    assert found[0, 0, 4, 4] == -0.5
    assert set(np.unique(found)) == {np.float32(-0.5), np.float32(1.0)}


def test_a_grey_image_stays_grey_when_colours_change():
    # Saturation and hue do nothing to grey; brightness and contrast treat channels alike.
    images = np.repeat(stream(0, "test.views").normal(size=(20, 1, 4, 4)), 3, axis=1)

    found = recoloured(images.astype(np.float32), stream(1, "test.views"))

    np.testing.assert_allclose(found[:, 0], found[:, 1], atol=1e-4)
    np.testing.assert_allclose(found[:, 0], found[:, 2], atol=1e-4)
    assert not np.allclose(found, images, atol=0.1)


def test_about_a_fifth_becomes_grey_and_about_a_fifth_of_the_rest_is_left_alone():
    images = stream(0, "test.views").random((2000, 3, 2, 2)).astype(np.float32)

    found = recoloured(images, stream(1, "test.views"))

    grey = np.ptp(found, axis=1).max(axis=(1, 2)) < 1e-5
    same = np.abs(found - images).max(axis=(1, 2, 3)) < 1e-5
    assert grey.mean() == pytest.approx(0.2, abs=0.05)
    assert same.mean() == pytest.approx(0.2 * 0.8, abs=0.05)
    low, high = images.min(axis=(1, 2, 3)), images.max(axis=(1, 2, 3))
    assert (found.min(axis=(1, 2, 3)) >= low - 1e-5).all()  # an image keeps its range
    assert (found.max(axis=(1, 2, 3)) <= high + 1e-5).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_view_has_the_shape_and_type_of_the_images_and_leaves_them_alone(channels, count):
    images = stream(0, "test.views").normal(size=(count, channels, 6, 6)).astype(np.float32)
    before = images.copy()

    found = second_view(images, stream(1, "test.views"))

    assert (found.shape, found.dtype) == (images.shape, images.dtype)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(images, before)


# ---- losses ----------------------------------------------------------------------------------


def logits(*rows):
    return torch.log(torch.tensor(rows))


def test_the_fit_is_minus_log_of_the_sharpened_mixture():
    # Mixture 0.25 (0.8, 0.2) + 0.75 (0.4, 0.6) = (0.5, 0.5): sharpened still 1/2.
    # Of (0.8, 0.2) alone: 0.64 / 0.68.
    loss = FedLsr(entropy=0.0).loss
    first, second, label = logits((0.8, 0.2)), logits((0.4, 0.6)), torch.tensor([0])

    assert loss(first, second, label, share=0.25, gamma=0.0).item() == pytest.approx(
        math.log(2), abs=1e-6
    )
    assert loss(first, second, label, share=1.0, gamma=0.0).item() == pytest.approx(
        -math.log(0.64 / 0.68)
    )


def test_views_are_compared_at_a_third_of_the_temperature():
    # softmax(3 log p) is p^3 normalised: (8, 1) / 9 and (1, 8) / 9; their mean is (1, 1) / 2.
    first, second = logits((2 / 3, 1 / 3)), logits((1 / 3, 2 / 3))
    each = 8 / 9 * math.log(16 / 9) + 1 / 9 * math.log(2 / 9)

    assert jensen_shannon(first, second).item() == pytest.approx(each, abs=1e-6)
    assert jensen_shannon(first, first).item() == pytest.approx(0.0, abs=1e-6)


def test_the_terms_add_up():
    first, second, label = logits((2 / 3, 1 / 3)), logits((0.5, 0.5)), torch.tensor([1])
    fit = FedLsr(entropy=0.0).loss(first, second, label, share=0.3, gamma=0.0).item()
    entropies = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)), math.log(2)

    found = FedLsr(entropy=0.6).loss(first, second, label, share=0.3, gamma=0.4).item()

    expected = fit + 0.4 * jensen_shannon(first, second).item() + 0.6 * sum(entropies) / 2
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_released_code_takes_a_softmax_of_probabilities():
    # q1 = (8, 1) / 9. Softmax of a pair (a, b) is the logistic function of a - b.
    first, second, label = logits((2 / 3, 1 / 3)), logits((1 / 3, 2 / 3)), torch.tensor([0])
    method = FedLsr(entropy=0.6, parity="code")
    found = method.loss(first, second, label, share=1.0, gamma=0.4)

    fit = math.log1p(math.exp(-(0.8 - 0.2)))  # p_s = (4, 1) / 5
    p = 1 / (1 + math.exp(-7 / 9))
    entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    gap = jensen_shannon(first, second).item() / 2  # C = 2
    assert found.item() == pytest.approx(fit + 0.4 * gap + 0.6 * entropy, abs=1e-6)


@pytest.mark.parametrize("parity", ["paper", "code"])
def test_impossible_labels_cost_a_finite_amount(parity):
    method = FedLsr(entropy=1.0, parity=parity)
    sure = torch.tensor([[200.0, -200.0]], requires_grad=True)

    value = method.loss(sure, -sure, torch.tensor([1]), share=1.0, gamma=1.0)
    value.backward()

    assert math.isfinite(value.item())
    assert torch.isfinite(sure.grad).all()


def test_a_label_held_for_impossible_still_pulls():
    # d/dz of -2 log p_y + log sum p^2 is 2 (p_s - y), however small p_y is.
    loss = FedLsr(entropy=0.0).loss
    sure = torch.tensor([[40.0, -40.0]], requires_grad=True)

    loss(sure, sure, torch.tensor([1]), share=0.5, gamma=0.0).backward()

    torch.testing.assert_close(sure.grad, torch.tensor([[2.0, -2.0]]))


# ---- a batch and rounds ----------------------------------------------------------------------


def test_a_batch_follows_the_sheet():
    rng = stream(0, "test.fedlsr")
    images = rng.normal(size=(5, 1, 4, 4)).astype(np.float32)
    labels = rng.integers(0, CLASSES, 5)
    start = rng.normal(size=51).astype(np.float32)
    tree = {"trainable": start, "buffers": np.zeros(0, np.float32)}
    train = TrainSettings(epochs=1, batch_size=5, lr=LR, order="stored")
    method = FedLsr(consistency=0.4, entropy=0.6, warmup_rounds=0)
    with open_session(
        MODEL, [tree], images, labels, train, rng=stream(1, "test"), classes=CLASSES
    ) as session:
        session.sent = {"server": load_config("quickstart").server}
        _, sent = method.train(session, {}, Where("train", 0, 1))
        found, noted = sent.tree["trainable"], session.loss

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

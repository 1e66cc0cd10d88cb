"""Own losses, regularisers, dropout, and the settings themselves."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysim.models.networks import Network
from raysim.models.params import initial_tree
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import Logistic, Mlp
from raysim.seeding import stream
from raysim.settings import SettingError, settings

SHAPE, CLASSES = (4, 4, 1), 3
PLAIN = TrainSettings(epochs=2, batch_size=4, lr=0.1)


@settings
class WithDropout:
    """A network that draws random numbers while it trains."""

    def check(self, image_shape):
        pass

    def build(self, image_shape, classes):
        height, width, channels = image_shape
        body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5))
        return Network(body, height * width * channels, classes)


def data(samples=10):
    rng = stream(0, "data")
    images = rng.standard_normal((samples, 1, 4, 4)).astype(np.float32)
    return images, rng.integers(0, CLASSES, size=samples)


def train(model, tree, train_settings, *, seed=0, **hooks):
    rng = stream(seed, "train")
    return train_client(model, tree, *data(), train_settings, rng=rng, classes=CLASSES, **hooks)


def nothing(logits, batch):
    return 0.0 * logits.sum()


def test_a_loss_reaches_soft_labels_through_the_index():
    tree = initial_tree(Mlp(), SHAPE, CLASSES, seed=0)
    soft = torch.tensor(np.eye(CLASSES, dtype=np.float32)[data()[1]])

    def soft_cross_entropy(logits, batch):
        targets = soft[torch.from_numpy(batch.index)]
        return -(targets * torch.log_softmax(logits, dim=1)).sum(dim=1).mean()

    hard, report = train(Mlp(), tree, PLAIN)
    found, soft_report = train(Mlp(), tree, PLAIN, loss=soft_cross_entropy)

    np.testing.assert_allclose(found["trainable"], hard["trainable"], atol=1e-6)
    assert soft_report.loss == pytest.approx(report.loss, abs=1e-6)


def test_a_batch_holds_what_its_index_says():
    images, labels = data()
    seen = []

    def look(logits, batch):
        assert np.array_equal(batch.images.numpy(), images[batch.index])
        assert np.array_equal(batch.labels.numpy(), labels[batch.index])
        seen.append(batch.index)
        return nothing(logits, batch)

    train(Mlp(), initial_tree(Mlp(), SHAPE, CLASSES, seed=0), PLAIN, loss=look)

    assert [len(index) for index in seen] == [4, 4, 2, 4, 4, 2]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(np.concatenate(epoch)) == list(range(10))
    assert not np.array_equal(np.concatenate(seen[:3]), np.concatenate(seen[3:]))


def test_a_proximal_term_pulls_towards_the_reference():
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)
    mu, once = 0.3, replace(PLAIN, epochs=1, batch_size=10)

    def to_zero(module):
        return mu / 2 * sum((w**2).sum() for w in module.parameters())

    trained, report = train(Logistic(), tree, once, loss=nothing, regulariser=to_zero)

    # one step along mu (w - 0): w <- (1 - lr mu) w (FedProx)
    expected = (1 - once.lr * mu) * tree["trainable"]
    np.testing.assert_allclose(trained["trainable"], expected, atol=1e-7)
    assert report.loss == 0.0  # the reported loss leaves the regulariser out


def test_a_regulariser_of_zero_changes_no_bit():
    tree = initial_tree(Mlp(), SHAPE, CLASSES, seed=0)

    plain, report = train(Mlp(), tree, PLAIN)
    found, same = train(Mlp(), tree, PLAIN, regulariser=lambda _: torch.zeros(()))

    assert plain["trainable"].tobytes() == found["trainable"].tobytes()
    assert report == same


def test_weight_decay_alone_shrinks_the_weights():
    tree = initial_tree(Logistic(), SHAPE, CLASSES, seed=0)
    once = replace(PLAIN, epochs=1, batch_size=10, weight_decay=0.5)

    trained, _ = train(Logistic(), tree, once, loss=nothing)

    np.testing.assert_allclose(trained["trainable"], 0.95 * tree["trainable"], atol=1e-7)


def test_dropout_draws_from_the_clients_generator_and_not_from_torchs():
    tree = initial_tree(WithDropout(), SHAPE, CLASSES, seed=0)
    whole = replace(PLAIN, batch_size=10, epochs=1)  # one batch: its order changes only rounding
    before = torch.random.get_rng_state()

    first, _ = train(WithDropout(), tree, whole)
    untouched = torch.equal(torch.random.get_rng_state(), before)
    torch.randn(3)
    again, _ = train(WithDropout(), tree, whole)
    other, _ = train(WithDropout(), tree, whole, seed=1)

    assert untouched
    assert first["trainable"].tobytes() == again["trainable"].tobytes()
    assert not np.allclose(first["trainable"], other["trainable"], atol=1e-4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", -1),
        ("epochs", 0),
        ("batch_size", 0),
        ("optimizer", "sdg"),
        ("lr", 0.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1e-3),
        ("weight_decay", math.inf),
        ("participation", 0.0),
        ("participation", 1.1),
        ("augment", "mixup"),
    ],
)
def test_settings_out_of_range_are_refused_by_field_value_and_remedy(field, value):
    with pytest.raises(SettingError) as caught:
        TrainSettings(**{field: value})

    assert caught.value.field == field
    assert repr(caught.value.got) == repr(value)
    assert caught.value.do


def test_momentum_with_adam_is_refused_since_it_would_do_nothing():
    with pytest.raises(SettingError, match="momentum must be 0 with adam"):
        TrainSettings(optimizer="adam", momentum=0.5)


def test_zero_rounds_are_allowed():
    assert TrainSettings(rounds=0).rounds == 0

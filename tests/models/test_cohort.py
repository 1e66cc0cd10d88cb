"""Training many dense clients at once means training each alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from raysim.models import stacked_training as cohort
from raysim.models.closed_form import form_logits
from raysim.models.evaluation import logits
from raysim.models.forms import closed_form
from raysim.models.params import initial_tree
from raysim.models.stacked_training import Member, train_cohort
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import LeNet5, Logistic, Mlp, SmallCnn
from raysim.seeding import stream

SHAPE, CLASSES = (5, 4, 1), 3
SIZES = (1, 3, 8, 13, 20, 31, 32, 33, 64, 70, 70, 5)
MODELS = {"logistic": Logistic(), "mlp": Mlp(hidden=7), "lenet5": LeNet5(batch_norm=False)}
SHAPES = {"lenet5": (19, 16, 1)}  # an odd map under the second pooling
VARIANTS = {
    "sgd": {},
    "momentum, decay, proximal": {"momentum": 0.9, "weight_decay": 0.01, "proximal": 0.1},
    "adam with decay": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01},
    "stored order": {"order": "stored"},
}


def clients(sizes=SIZES, shape=SHAPE):
    made = []
    for k, size in enumerate(sizes):
        rng = stream(0, "cohort test", k)
        images = rng.normal(size=(size, 1, *shape[:2])).astype(np.float32)
        made.append((images, rng.integers(0, CLASSES, size)))
    return made


def members(data, ids):
    def member(k):
        images, labels = data[k]
        return Member(images=lambda: images, labels=labels, rng=lambda: stream(1, "train", k))

    return [member(k) for k in ids]


def together(model, data, ids, settings, shape=SHAPE):
    """Parameters and reports by client."""
    tree = initial_tree(model, shape, CLASSES, 0)
    form = closed_form(model, shape, CLASSES)
    found = {}
    for part in train_cohort(form, tree, members(data, ids), settings):
        for place, row, report in zip(part.places, part.trainable, part.reports, strict=True):
            found[ids[place]] = (row, report)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_cohort_equals_each_client_alone(name, variant):
    settings = TrainSettings(epochs=2, batch_size=32, **VARIANTS[variant])
    model, shape = MODELS[name], SHAPES.get(name, SHAPE)
    data = clients(shape=shape)
    tree = initial_tree(model, shape, CLASSES, 0)

    found = together(model, data, range(len(data)), settings, shape)

    for k, (images, labels) in enumerate(data):
        rng = stream(1, "train", k)
        alone, report = train_client(
            model, tree, images, labels, settings, rng=rng, classes=CLASSES
        )
        # Adam divides gradients of rounding size (behind dead ReLUs) by themselves.
        atol = 1e-4 if name == "lenet5" and variant.startswith("adam") else 1e-5
        np.testing.assert_allclose(found[k][0], alone["trainable"], atol=atol)
        assert found[k][1].loss == pytest.approx(report.loss, abs=1e-5)
        assert (found[k][1].steps, found[k][1].samples) == (report.steps, report.samples)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_clients_bits_do_not_depend_on_its_company(name, variant):
    settings = TrainSettings(epochs=2, batch_size=32, **VARIANTS[variant])
    model, shape = MODELS[name], SHAPES.get(name, SHAPE)
    data = clients(shape=shape)
    everyone = together(model, data, range(len(data)), settings, shape)

    for ids in ([0], [9], [2, 7], [5, 4, 3], list(range(0, 12, 2))):
        some = together(model, data, ids, settings, shape)

        for k in ids:
            assert some[k][0].tobytes() == everyone[k][0].tobytes()
            assert some[k][1] == everyone[k][1]


def test_the_size_of_the_stacks_does_not_change_a_bit(monkeypatch):
    settings = TrainSettings(epochs=1, batch_size=8)
    data = clients()
    wide = together(Logistic(), data, range(len(data)), settings)
    monkeypatch.setattr(cohort, "STACK_BYTES", 1)  # every client alone

    narrow = together(Logistic(), data, range(len(data)), settings)

    assert all(narrow[k][0].tobytes() == wide[k][0].tobytes() for k in wide)


def test_stacks_cover_everyone_once_within_the_budget():
    sizes = [60] * 500 + [600] * 20 + [1, 0, 7]

    cut = cohort.stacks(sizes, inputs=784, num_parameters=7850, batch_size=32, budget=8_000_000)

    assert sorted(itertools.chain(*cut)) == list(range(len(sizes)))
    for places in cut:
        rows = {cohort.batch_rows(sizes[p], 32) for p in places}
        assert len(rows) == 1
        longest = -(-max(sizes[p] for p in places) // 32) * 32
        nbytes = 4 * len(places) * (longest * 784 + 4 * 7850)
        assert len(places) == 1 or nbytes <= 8_000_000


def test_a_client_without_samples_keeps_the_model():
    data = clients((0, 9))
    tree = initial_tree(Logistic(), SHAPE, CLASSES, 0)

    found = together(Logistic(), data, range(2), TrainSettings(epochs=1))

    assert found[0][0].tobytes() == tree["trainable"].tobytes()
    assert np.isnan(found[0][1].loss)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [0, 1, 50, 300])
def test_logits_without_torch_equal_those_of_the_network(name, count):
    model, shape = MODELS[name], SHAPES.get(name, SHAPE)
    images, _ = clients((count,), shape)[0]
    tree = initial_tree(model, shape, CLASSES, 0)

    ours = form_logits(closed_form(model, shape, CLASSES), tree["trainable"], images)

    np.testing.assert_allclose(ours, logits(model, tree, images, classes=CLASSES), atol=1e-5)


def test_batch_norm_has_no_closed_form():
    assert closed_form(SmallCnn(), (8, 8, 1), 10) is None
    assert closed_form(LeNet5(batch_norm=True), (32, 32, 1), 10) is None


def test_a_tie_in_pooling_goes_to_the_first_as_in_torch():
    model, shape = LeNet5(batch_norm=False), (16, 16, 1)
    flat = np.ones((8, 1, 16, 16), dtype=np.float32)  # every patch alike: all corners tie
    labels = np.arange(8) % CLASSES
    settings = TrainSettings(epochs=3, batch_size=4, order="stored")
    tree = initial_tree(model, shape, CLASSES, 0)

    found = together(model, [(flat, labels)], [0], settings, shape)

    alone, _ = train_client(
        model, tree, flat, labels, settings, rng=stream(1, "train", 0), classes=CLASSES
    )
    np.testing.assert_allclose(found[0][0], alone["trainable"], atol=1e-5)

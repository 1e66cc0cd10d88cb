"""Clients judge in batches as large as in training where batch norm knows only the batch."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.methods.dividemix import plain_losses
from raysim.methods.fedrn import accuracy
from raysim.methods.rfl import features_and_pseudo_labels
from raysim.models.evaluation import logits, sample_losses
from raysim.models.params import initial_tree
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import FourConv
from raysim.seeding import stream

MODEL, CLASSES, BATCH = FourConv(track_running_stats=False), 4, 3
TREE = initial_tree(MODEL, (16, 16, 1), CLASSES, seed=0)


@pytest.fixture
def session():
    rng = stream(0, "test.batches")
    images = rng.normal(size=(8, 1, 16, 16)) * np.arange(1, 9)[:, None, None, None]
    train = TrainSettings(batch_size=BATCH)
    labels = rng.integers(0, CLASSES, 8)
    with open_session(
        MODEL, [TREE], images.astype(np.float32), labels, train, rng=rng, classes=CLASSES
    ) as opened:
        yield opened


def outputs(session, rows):
    return logits(MODEL, TREE, session.images, classes=CLASSES, normed_rows=rows)


def test_the_size_of_a_batch_matters(session):
    assert not np.allclose(outputs(session, BATCH), outputs(session, 8), atol=1e-3)


def test_losses_that_dividemix_judges_by(session):
    expected = sample_losses(outputs(session, BATCH), session.labels)
    np.testing.assert_allclose(plain_losses(session, 0), expected, rtol=1e-5)


def test_classes_that_robust_fl_predicts(session):
    _, pseudo = features_and_pseudo_labels(session)
    np.testing.assert_array_equal(pseudo, outputs(session, BATCH).argmax(axis=1))


def test_accuracy_that_fedrns_clients_report(session):
    session.labels = outputs(session, BATCH).argmax(axis=1)
    session.sent = {"model": MODEL, "classes": CLASSES}

    assert accuracy(session, TREE) == 1.0
    assert (outputs(session, 8).argmax(axis=1) != session.labels).any()

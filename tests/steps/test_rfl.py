"""Robust FL: its schedule, one batch written as a loop, centroids of clients and server."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.errors import ConfigError
from raysim.methods.rfl import (
    CENTROIDS,
    RobustFl,
    features_and_pseudo_labels,
    merged_centroids,
)
from raysim.models.params import initial_tree
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError

CLASSES, LR = 3, 0.1
MODEL = MODELS.get("mlp")()
AT_ONCE = {"ramp_rounds": 0, "pseudo_rounds": 0}


def config(**changes):
    from raysim.config import load_config

    given = [f"{key}={value}" for key, value in changes.items()]
    return load_config("quickstart", ["method=rfl", "train.rounds=40", *given])


# ---- schedule --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_id", "rate", "pull", "corrects"),
    [(0, 0.0, 0.0, False), (2, 0.04, 1.0, False), (4, 0.08, 2.0, True), (30, 0.2, 2.0, True)],
)
def test_what_is_left_out_and_the_pull_grow(round_id, rate, pull, corrects):
    # A tenth of 40 rounds: T_pl = 4; eps reaches 0.2 in round 10.
    found = RobustFl(pull=2.0).schedule(round_id, 40)

    assert found == (pytest.approx(rate), pull, corrects)
    assert (RobustFl().entropy, RobustFl().parity) == (0.8, "paper")


def test_without_ramps_everything_is_there_at_once():
    assert RobustFl(**AT_ONCE).schedule(0, 40) == (0.2, 1.0, True)


# ---- the loss by hand ------------------------------------------------------------------------

FEATURES = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
CENTERS = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
LOGITS = torch.log(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def loss_of(labels, *, pull=0.0, corrects=False, entropy=0.0, parity="paper"):
    labels, pseudo = torch.tensor(labels), torch.tensor([0, 0])
    how = {"centroids": CENTERS, "pseudo": pseudo, "pull": pull, "corrects": corrects}
    return RobustFl(entropy=entropy, parity=parity).loss(FEATURES, LOGITS, labels, **how).item()


def test_a_label_that_its_centroid_contradicts_is_replaced_once_correction_is_on():
    # Sample 0 looks like class 0 but is labelled 1; the received model says 0.
    assert loss_of([1, 1]) == pytest.approx(-(np.log(0.25) + np.log(0.5)) / 2)
    assert loss_of([1, 1], corrects=True) == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2)


def test_the_pull_counts_samples_whose_centroid_agrees():
    plain = loss_of([0, 0])
    # Sample 0: (3 - 1)^2 = 4 over 2 samples and 2 features; sample 1 contradicts its label.
    assert loss_of([0, 0], pull=0.5) == pytest.approx(plain + 0.5 * 4 / 4)
    assert loss_of([0, 0], pull=0.5, parity="code") == pytest.approx(plain + 0.5 * 4)
    both = loss_of([0, 1], pull=1.0) - loss_of([0, 1])
    assert both == pytest.approx((4 + 1) / 4)


def test_the_entropy_is_that_of_the_predictions():
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) / 2 + np.log(2) / 2

    assert loss_of([0, 1], entropy=0.8) - loss_of([0, 1]) == pytest.approx(0.8 * entropy)


# ---- one batch -------------------------------------------------------------------------------


def trained(method, round_id=0, *, batch=8):
    samples = 8
    rng = stream(0, "test.rfl")
    images = rng.normal(size=(samples, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, CLASSES, samples)
    tree = initial_tree(MODEL, (2, 2, 1), CLASSES, 0)
    train = TrainSettings(epochs=1, batch_size=batch, lr=LR, order="stored")
    with open_session(
        MODEL, [tree], images, labels, train, rng=stream(1, "test"), classes=CLASSES
    ) as session:
        before, pseudo = features_and_pseudo_labels(session)
        pseudo = (pseudo + 1) % CLASSES  # another class than most labels of small loss
        start = np.abs(rng.normal(size=(CLASSES, before.shape[1]))).astype(np.float32)
        how = {"centroids": start, "pseudo": pseudo}
        found, kept = method.train_by_centroids(session, round_id, **how)
        after, loss = session.tree(), session.loss
        return tree, images, labels, before, pseudo, start, found, kept, after, loss


def test_a_batch_follows_the_sheet():
    method = RobustFl(forget_rate=0.3, pull=0.7, entropy=0.4, **AT_ONCE)
    tree, images, labels, seen, pseudo, start, found, kept, after, loss = trained(method)
    module = MODEL.build((2, 2, 1), CLASSES)
    torch.nn.utils.vector_to_parameters(torch.tensor(tree["trainable"]), module.parameters())

    logits = module(torch.tensor(images))
    losses = [-torch.log_softmax(logits[i], 0)[labels[i]].item() for i in range(8)]
    small = sorted(range(8), key=lambda i: losses[i])[:5]  # floor(0.7 * 8)
    total, agreed = 0.0, set()
    features = module.features(torch.tensor(images))
    for i in small:
        cosines = [seen[i] @ c / (np.linalg.norm(seen[i]) * np.linalg.norm(c)) for c in start]
        agrees = int(np.argmax(cosines)) == labels[i]
        agreed.add(bool(agrees))
        log_p = torch.log_softmax(logits[i], 0)
        total = total - log_p[labels[i] if agrees else pseudo[i]] / 5
        total = total - 0.4 * (log_p.exp() * log_p).sum() / 5
        gap = features[i] - torch.tensor(start[labels[i]])
        total = total + 0.7 * agrees * (gap**2).mean() / 5
    assert agreed == {True, False}  # both ways are taken
    total.backward()
    moved = [p.detach() - LR * p.grad for p in module.parameters()]

    flat = torch.nn.utils.parameters_to_vector(moved).numpy()
    np.testing.assert_allclose(after["trainable"], flat, atol=1e-6)
    assert np.flatnonzero(kept).tolist() == sorted(small)
    assert loss == pytest.approx(total.item(), rel=1e-5)
    for c in range(CLASSES):
        own = [seen[i] for i in small if labels[i] == c]
        expected = start[c]
        if own:
            mean = np.mean(own, axis=0)
            s = start[c] @ mean / (np.linalg.norm(start[c]) * np.linalg.norm(mean))
            expected = (1 - s**2) * start[c] + s**2 * mean
        np.testing.assert_allclose(found[c], expected, atol=1e-5)


def test_a_batch_of_which_nothing_is_left_makes_no_step():
    method = RobustFl(forget_rate=0.5, **AT_ONCE)
    tree, *_, start, found, kept, after, loss = trained(method, batch=1)

    np.testing.assert_array_equal(after["trainable"], tree["trainable"])
    np.testing.assert_array_equal(found, start)
    assert not kept.any()
    assert np.isfinite(loss)


def test_a_detached_pull_moves_nothing():
    how = {"forget_rate": 0.0, "entropy": 0.0, "pseudo_rounds": 2}
    without = trained(RobustFl(pull=0.0, **how), 1)

    found = trained(RobustFl(pull=10.0, parity="code", **how), 1)  # half of it in round 1
    attached = trained(RobustFl(pull=10.0, **how), 1)

    assert not np.array_equal(attached[8]["trainable"], without[8]["trainable"])
    np.testing.assert_array_equal(found[8]["trainable"], without[8]["trainable"])


# ---- rounds ----------------------------------------------------------------------------------

LABELS = [[0, 0, 1], [1, 0], []]


def made_bench(bench, *more):
    made = bench(LABELS, "model.name=logistic", "train.epochs=1", *more, classes=CLASSES)
    pixels = stream(0, "test.rfl.bench").normal(size=made.world.pixels.shape)
    made.world.pixels = np.abs(pixels).astype(np.float32)
    return made


def run_rounds(made, method, count):
    state, stage = State(groups=dict.fromkeys(range(3), 0)), method.stages(made.config)[1]
    contexts = [made.round(number) for number in range(count)]
    for context in contexts:
        state = stage.step(context, state)
    return state, contexts


def centroids_of(made, state):
    return made.federation.get(state.models[CENTROIDS])["centroids"]


def test_the_first_centroids_are_means_of_what_clients_see(bench):
    # Logistic regression: the features are the pixels, whatever the weights are.
    made = made_bench(bench, "train.batch_size=1")
    state, _ = run_rounds(made, RobustFl(ramp_rounds=5), 1)
    random = stream(made.config.seed, "centroids").normal(size=(CLASSES, 4))

    found = centroids_of(made, state)

    pixels = made.world.pixels.reshape(-1, 4)
    own = []
    for k in (0, 1):  # the third has no sample, nobody has class 2
        labels, seen = made.labels[k], pixels[made.ids[k]]
        start = np.stack([seen[labels == c].mean(axis=0) for c in (0, 1)])
        order = stream(made.config.seed, "train", 0, k)
        order.integers(2**63)  # torch's seed
        for i in order.permutation(len(labels)):
            f, x = start[labels[i]], seen[i]
            s = f @ x / (np.linalg.norm(f) * np.linalg.norm(x))
            start[labels[i]] = (1 - s**2) * f + s**2 * x
        own.append(start)
    np.testing.assert_allclose(found[:2], (own[0] + own[1]) / 2, atol=1e-5)
    np.testing.assert_allclose(found[2], random[2], atol=1e-6)


def test_later_centroids_count_by_their_cosine(bench):
    made = made_bench(bench)
    state, _ = run_rounds(made, RobustFl(), 1)
    received = {"centroids": np.float32([[2, 0], [0, 3], [1, 1]])}

    # Class 0: clients say (1, 0) with cosine 1 and (1, 1) with 0.6; sent as products.
    mean = {
        "centroids": np.float32([[1.6, 0.6], [0, 0], [1, 1]]) / 2,
        "agreement": np.float32([1.6, 0, 1]) / 2,
    }

    found = merged_centroids(received=received, mean=mean)["centroids"]

    np.testing.assert_allclose(found, [[1, 0.375], [0, 3], [1, 1]], atol=1e-6)
    assert state.models.keys() == {"group/0", CENTROIDS}


def test_the_model_is_a_uniform_mean_and_centroids_are_counted(bench):
    made = made_bench(bench)

    state, contexts = run_rounds(made, RobustFl(ramp_rounds=1), 2)

    tree = made.federation.get(state.models["group/0"])
    assert tree.keys() == {"trainable", "buffers"}
    model, centroids = 4 * (4 * CLASSES + CLASSES), 4 * CLASSES * 4
    sent = {"model": 3 * model, "centroids": 3 * centroids}
    assert [c.entry["bytes"] for c in contexts] == [{"up": sent, "down": sent}] * 2
    assert "selection" not in contexts[0].entry  # nothing is left out yet
    # Labels are right: floor(0.8 * 3) of 3 and floor(0.8 * 2) of 2 are kept.
    assert contexts[1].entry["selection"]["recall"] == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_what_it_does_not_do_is_refused():
    for given, text in (
        ({"train.mixup": 1.0}, r"train\.mixup is 1, but Robust FL"),
        ({"server.optimizer": "fednova"}, r"server\.optimizer is fednova, but Robust FL"),
    ):
        found = config(**given)
        with pytest.raises(ConfigError, match=text):
            found.method.check(found, classes=10, dimensions={})


@pytest.mark.parametrize(
    "wrong", [{"forget_rate": 1.0}, {"ramp_rounds": -1}, {"pseudo_rounds": -1}, {"pull": -0.1}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        RobustFl(**wrong)

"""CORES2 in a federation: what its two forms train, and on which samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from raysim.methods.cores2 import GlobalCores2, LocalCores2, confident_loss, sieve
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings
from raysim.models.zoo import MODELS
from raysim.protocols import State, Where
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import with_initial
from raysim.steps.server import ServerSettings

MODEL = MODELS.get("logistic")()
TRAIN = TrainSettings(epochs=1, batch_size=8, lr=0.3, order="stored")
ALONE, SIFTED = GlobalCores2(warmup=0), LocalCores2(warmup=0)
LATER = Where("train", 3, 10)


def samples():
    rng = stream(0, "test.cores2")
    images = rng.normal(size=(8, 1, 2, 2)).astype(np.float32)
    trees = [
        {"trainable": rng.normal(size=15).astype(np.float32), "buffers": np.zeros(0, np.float32)}
        for _ in range(2)
    ]
    return images, rng.integers(0, 3, 8), trees


def outputs(flat, images):
    rows = torch.tensor(images.reshape(8, 4))
    return rows @ flat[:12].reshape(3, 4).T + flat[12:]


def moved(flat, loss_of, size):
    flat = torch.tensor(flat).requires_grad_(True)
    (gradient,) = torch.autograd.grad(loss_of(flat), flat)
    return (flat - size * gradient).detach().numpy()


def test_the_global_model_trains_on_its_own_selection_with_smaller_steps():
    images, labels, (start, _) = samples()
    given = torch.tensor(labels)
    with open_session(
        MODEL, [start], images, labels, TRAIN, rng=stream(1, "test"), classes=3
    ) as own:
        own.sent = {"server": ServerSettings()}
        _, sent = ALONE.train(own, {}, LATER)
        found, mask = sent.tree["trainable"], sent.reply["selected"]

    chosen = sieve(outputs(torch.tensor(start["trainable"]), images), given)
    # beta 2 divides the step by 3.
    expected = moved(
        start["trainable"],
        lambda w: confident_loss(outputs(w, images), given, 2.0)[chosen].mean(),
        0.3 / 3.0,
    )
    assert 0 < chosen.sum() < 8
    assert mask.tolist() == chosen.tolist()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_private_model_selects_for_plain_cross_entropy():
    images, labels, trees = samples()
    given = torch.tensor(labels)
    with open_session(MODEL, trees, images, labels, TRAIN, rng=stream(1, "test"), classes=3) as own:
        own.sent = {"server": ServerSettings()}
        memory, sent = SIFTED.train(own, {}, LATER)
        mask = sent.reply["selected"]
        shared, private = sent.tree["trainable"], memory["private/trainable"]

    start, own_start = trees[0]["trainable"], trees[1]["trainable"]
    chosen = sieve(outputs(torch.tensor(own_start), images), given)
    assert 0 < chosen.sum() < 8
    assert mask.tolist() == chosen.tolist()
    expected = moved(
        own_start,
        lambda w: confident_loss(outputs(w, images), given, 2.0)[chosen].mean(),
        0.3 / 3.0,
    )
    np.testing.assert_allclose(private, expected, atol=1e-6)
    expected = moved(start, lambda w: cross_entropy(outputs(w, images)[chosen], given[chosen]), 0.3)
    np.testing.assert_allclose(shared, expected, atol=1e-6)


def test_the_network_that_sieves_has_a_learning_rate_of_its_own():
    images, labels, trees = samples()
    starts = [tree["trainable"] for tree in trees]

    def after(method):
        with open_session(
            MODEL, trees, images, labels, TRAIN, rng=stream(1, "test"), classes=3
        ) as own:
            own.sent = {"server": ServerSettings()}
            method.train(own, {}, LATER)
            return [own.tree(i)["trainable"] - start for i, start in enumerate(starts)]

    alone, slower = after(ALONE), after(replace(ALONE, personal_lr=0.5))
    np.testing.assert_allclose(slower[0], alone[0] / 2, atol=1e-6)
    both, slower = after(SIFTED), after(replace(SIFTED, personal_lr=0.5))
    np.testing.assert_allclose(slower[1], both[1] / 2, atol=1e-6)
    np.testing.assert_array_equal(slower[0], both[0])


@pytest.mark.parametrize("method", [GlobalCores2, LocalCores2])
def test_nothing_is_judged_before_the_warm_up_is_over(bench, method):
    made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", classes=2)
    *_, stage = method(warmup=1).stages(made.config)
    contexts = [made.round(number) for number in range(3)]
    state = State(groups={0: 0, 1: 0})

    for context in contexts:
        state = stage.step(context, state)

    assert ["selection" in context.entry for context in contexts] == [False, False, True]


def test_private_models_start_from_the_first_global_one(bench):
    made = bench([[0, 0], [1]], "model.name=logistic", "train.lr=1e-6", classes=2)
    *_, stage = LocalCores2().stages(made.config)
    state = State(groups={0: 0, 1: 0})
    start = with_initial(made.round(), state).models["group/0"]
    tree = made.federation.get(start)
    trained = made.federation.put({**tree, "trainable": tree["trainable"] + 1})

    stage.step(made.round(), replace(state, models={"group/0": trained, "start/0": start}))

    for private in made.federation.map(private_task).values():
        np.testing.assert_allclose(private, tree["trainable"], atol=1e-4)


def test_the_first_global_model_is_kept(bench):
    made = bench([[0, 0], [1]], "model.name=logistic", classes=2)
    *_, stage = LocalCores2().stages(made.config)
    state = State(groups={0: 0, 1: 0})
    first = made.federation.get(with_initial(made.round(), state).models["group/0"])

    for _ in range(2):
        state = stage.step(made.round(), state)

    kept, trained = (made.federation.get(state.models[name]) for name in ("start/0", "group/0"))
    np.testing.assert_array_equal(kept["trainable"], first["trainable"])
    assert not np.array_equal(trained["trainable"], first["trainable"])


def private_task(client, memory, arguments):
    return memory, memory["private/trainable"]


@pytest.mark.parametrize(("method", "keeps"), [(GlobalCores2(), False), (LocalCores2(), True)])
def test_only_the_local_form_keeps_a_model_at_the_client(bench, method, keeps):
    made = bench([[0, 0, 1], [], [1]], "model.name=logistic", "train.epochs=1", classes=2)
    *_, stage = method.stages(made.config)

    stage.step(made.round(), State(groups={0: 0, 1: 0, 2: 0}))

    memory = made.federation.map(memory_task)
    assert all(("private/trainable" in names) == keeps for names in memory.values())


def memory_task(client, memory, arguments):
    return memory, sorted(memory)


@pytest.mark.parametrize("wrong", [{"warmup": -1}, {"confidence": -0.5}, {"personal_lr": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        GlobalCores2(**wrong)

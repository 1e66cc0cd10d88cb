"""RHFL: whom a client listens to, one step towards them, its own model, and what is sent."""

import json
from dataclasses import replace

import numpy as np
import pytest

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.rhfl import (
    Rhfl,
    aligned,
    confidence_weights,
    evaluate_models,
    published,
    start_models,
)
from raysim.models.zoo import Logistic
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import chosen_clients

C, SIZES, PUBLIC = 3, (8, 12, 20), 10
IN_ONE = dict.fromkeys(range(3), 0)
SHARED = {"classes": C, "train_mode": True, "device": "cpu"}


def clients(bench, *overrides, sizes=SIZES):
    rng = stream(0, "test.rhfl")
    quiet = ("evaluate.every=100", "train.epochs=1", "train.batch_size=8", "train.lr=0.5")
    made = bench([rng.integers(0, C, n) for n in sizes], *quiet, *overrides, classes=C)
    made.world.pixels = rng.normal(0, 1, made.world.pixels.shape).astype(np.float32)
    ids = np.arange(PUBLIC)
    made.clean = (ids, np.zeros(PUBLIC, np.int64))
    return made


def models(made):
    """Every client's own model, from its memory."""
    parts = ("trainable", "buffers")
    kept = made.federation.map(
        lambda _, memory, __: (memory, {p: np.array(memory[f"model/{p}"]) for p in parts})
    )
    return list(kept.values())


def give(made, scale=1.0):
    """Give every client other random weights."""
    rng = stream(1, "test.rhfl")
    each = {k: {"new": rng.normal(0, scale, 5 * C).astype(np.float32)} for k in range(3)}
    made.federation.map(
        lambda _, memory, a: (
            {**memory, "model/trainable": a["new"], "model/buffers": np.zeros(0, np.float32)},
            None,
        ),
        each=each,
    )


def run(made, method, rounds, *, last=False, state=None):
    state, entries = state or State(groups=dict.fromkeys(made.federation.clients, 0)), []
    *before, (_, _, step) = [(s.name, s.rounds, s.step) for s in method.stages(made.config)[1:]]
    for name, _, first in before:
        context = made.round(stage=name)
        state = first(context, state)
        entries.append(context.entry)
    for number in range(rounds):
        context = made.round(number, last=last and number + 1 == rounds)
        state = step(context, state)
        state = replace(state, values=json.loads(json.dumps(state.values)))
        entries.append(context.entry)
    return state, entries


def logits(made, tree, ids):
    flat = tree["trainable"].astype(np.float64)
    return made.world.pixels[ids].reshape(-1, 4) @ flat[: 4 * C].reshape(C, 4).T + flat[4 * C :]


def own_losses(made):
    """0.1 CE + RCE of every client's model on its samples, written out."""
    found = []
    for tree, ids, labels in zip(models(made), made.ids, made.labels, strict=True):
        z = logits(made, tree, ids)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        right = p[np.arange(len(ids)), labels]
        found.append((-0.1 * np.log(right) - np.log(1e-4) * (1 - right)).mean())
    return np.array(found)


# ---- confidence ------------------------------------------------------------------------------


def test_at_first_everyone_is_trusted_alike_and_losses_are_remembered(bench):
    made = clients(bench)
    give(made)
    context = made.round()

    state, found = Rhfl().reweight(context, State(groups=IN_ONE), range(3))

    assert found == {0: 0.5, 1: 0.5, 2: 0.5}  # 1 / (N - 1)
    kept = [state.values["own_loss"][str(k)] for k in range(3)]
    np.testing.assert_allclose(kept, own_losses(made), rtol=1e-5)
    assert context.entry["bytes"]["up"] == {"loss": 3 * 4}


def test_later_weights_follow_the_fall_of_the_losses_inside_each_group(bench):
    made = clients(bench)
    give(made)
    now, before = own_losses(made), np.array([9.0, 1.0, 2.0])
    values = {"own_loss": {str(k): before[k] for k in range(3)}}
    state = State(groups={0: 0, 1: 1, 2: 0}, values=values)

    _, found = Rhfl().reweight(made.round(), state, range(3))

    expected = confidence_weights(now[[0, 2]], before[[0, 2]], factor=0.5)
    np.testing.assert_allclose([found[0], found[2]], expected, rtol=1e-5)
    assert found[1] == 0.0  # alone in its group


# ---- alignment -------------------------------------------------------------------------------


def test_a_client_takes_one_step_towards_the_weighted_others(bench):
    made = clients(bench)
    give(made)
    before, weights = models(made), {0: 0.5, 1: 0.3, 2: 0.2}

    Rhfl(lr=0.01).align(made.round(), State(groups=IN_ONE), weights)

    order = stream(0, "public order", 0).permutation(PUBLIC)
    images = made.world.pixels[order]
    outputs = [published(Logistic(), tree, images, **SHARED)[1] for tree in before]
    for k in range(3):
        target = sum(weights[i] * outputs[i].astype(np.float64) for i in range(3) if i != k)
        new, _ = aligned(
            Logistic(), before[k], images, target.astype(np.float32), lr=0.01, **SHARED
        )
        np.testing.assert_allclose(models(made)[k]["trainable"], new["trainable"], atol=1e-6)


def test_predictions_travel_and_models_do_not(bench):
    made = clients(bench)

    _, entries = run(made, Rhfl(public_batch=4), 2)

    # raysim/docs/sheets/rhfl.md, Messages: n_pub C up and, mixed by the server, n_pub C down.
    sent = 3 * PUBLIC * C * 4
    expected = {"down": {"predictions": sent}, "up": {"predictions": sent, "loss": 3 * 4}}
    assert [entry["bytes"] for entry in entries] == [expected] * 2


def test_public_images_are_cut_into_equal_batches(bench, monkeypatch):
    made = clients(bench)
    give(made)
    sizes, call = [], made.federation.map

    def look(task, **arguments):
        batch = arguments["publish"]
        sizes.append(0 if batch is None else len(batch))
        return call(task, **arguments)

    monkeypatch.setattr(made.federation, "map", look)
    Rhfl(public_batch=9).align(made.round(), State(groups=IN_ONE), dict.fromkeys(range(3), 0.5))

    assert sizes == [5, 5, 0]  # not 9 and 1: one image has no statistics


def test_who_is_alone_in_its_group_learns_by_itself(bench):
    made, others = clients(bench), clients(bench)
    others.labels[2][:] = (others.labels[2] + 1) % C
    groups = State(groups={0: 0, 1: 1, 2: 1})

    for m in (made, others):
        run(m, Rhfl(), 2, state=groups)

    one, two = models(made), models(others)
    assert one[0]["trainable"].tobytes() == two[0]["trainable"].tobytes()
    assert one[1]["trainable"].tobytes() != two[1]["trainable"].tobytes()  # 1 listens to 2


# ---- rounds ----------------------------------------------------------------------------------


def test_models_start_alike_and_are_never_averaged(bench):
    made = clients(bench)
    start_models(made.round())
    assert len({m["trainable"].tobytes() for m in models(made)}) == 1

    state, _ = run(made, Rhfl(), 2, last=True)

    assert sorted(state.models) == ["client/0", "client/1", "client/2"]
    kept = models(made)
    assert len({m["trainable"].tobytes() for m in kept}) == 3
    for k in range(3):  # handed out on the grid of the exact sums
        found = made.federation.get(state.models[f"client/{k}"])["trainable"]
        np.testing.assert_allclose(found, kept[k]["trainable"], atol=2**-36)


def test_accuracy_is_the_mean_over_the_clients_own_models(bench):
    made = clients(bench)
    give(made)
    made.world.test_images = made.world.pixels
    made.world.test_labels = stream(2, "test.rhfl").integers(0, C, len(made.world.pixels))
    context = made.round(last=True)

    evaluate_models(context, State(groups=IN_ONE))

    every = np.arange(len(made.world.pixels))
    own = [
        (logits(made, tree, every).argmax(axis=1) == made.world.test_labels).mean()
        for tree in models(made)
    ]
    assert context.entry["per_client"] == pytest.approx(own)
    assert context.entry["accuracy"]["mean"] == pytest.approx(np.mean(own))


def test_only_participants_exchange_and_learn(bench):
    made = clients(bench, "train.participation=0.67", sizes=(8, 8, 8, 8, 8, 8))
    start_models(made.round())
    start = models(made)[0]["trainable"].tobytes()
    chosen = chosen_clients(made.round())

    state, entries = run(made, Rhfl(), 1)

    moved = {k for k, m in enumerate(models(made)) if m["trainable"].tobytes() != start}
    assert moved == set(chosen)
    assert sorted(map(int, state.values["own_loss"])) == chosen
    assert entries[0]["bytes"]["up"]["predictions"] == 4 * PUBLIC * C * 4


def test_losses_of_earlier_participants_are_kept_for_their_next_turn(bench):
    made = clients(bench, "train.participation=0.34", sizes=(8, 8, 8, 8, 8, 8))
    took_part = {k for number in range(3) for k in chosen_clients(made.round(number))}

    state, _ = run(made, Rhfl(), 3)

    assert set(map(int, state.values["own_loss"])) == took_part
    assert len(took_part) > 2


def test_pretraining_happens_once_before_the_first_round(bench):
    plain, warmed = clients(bench), clients(bench)
    state, entries = run(warmed, Rhfl(pretrain_epochs=3), 1)
    other, _ = run(plain, Rhfl(), 1)

    assert entries[1]["loss"] < entries[0]["loss"]
    assert all(
        state.values["own_loss"][k] < other.values["own_loss"][k] for k in state.values["own_loss"]
    )


def test_local_steps_are_adam_without_decay_or_the_configs(bench):
    train = clients(bench, "train.momentum=0.5", "train.weight_decay=0.001").config.train

    found = Rhfl().local_training(train)

    assert (found.optimizer, found.lr, found.momentum, found.weight_decay) == ("adam", 0.001, 0, 0)
    assert (found.epochs, found.batch_size) == (train.epochs, train.batch_size)
    assert Rhfl(local="config").local_training(train) == train


@pytest.mark.parametrize("sizes", [(0, 1, 9), (5,)])
def test_clients_without_samples_or_company_run(bench, sizes):
    made = clients(bench, sizes=sizes)
    made.clean = (np.arange(3), np.zeros(3, np.int64))

    run(made, Rhfl(), 2)

    assert all(np.isfinite(m["trainable"]).all() for m in models(made))


def test_a_run_without_public_images_is_refused():
    config = load_config("quickstart", ["method=rhfl", "data.server.per_class=0"])

    with pytest.raises(
        ConfigError, match=r"per_class is 0, but RHFL .*raise data.server.per_class"
    ):
        config.method.check(config, classes=10, dimensions={})


@pytest.mark.parametrize(
    "wrong", [{"lr": 0}, {"confidence": -1}, {"public_batch": 0}, {"pretrain_epochs": -1}]
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Rhfl(**wrong)

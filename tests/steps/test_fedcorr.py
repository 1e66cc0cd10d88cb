"""FedCorr: noisy clients, relabelling and its schedule, worked by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.fedcorr import FedCorr
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.identification import (
    clean_clients,
    clean_participants,
    noisy_clients,
    relabel,
)
from raysim.steps.server import group_model

C, SIZES = 2, (12, 20, 30, 16)
MODEL_BYTES = (4 * C + C) * 4
"""Logistic regression on 2x2 images."""
IN_ONE = dict.fromkeys(range(4), 0)


def clients(bench, *overrides, sizes=SIZES, labels=None):
    rng = stream(0, "test.fedcorr")
    quiet = ("evaluate.every=100", "train.epochs=1", "train.batch_size=8", "train.lr=0.5")
    labels = [rng.integers(0, C, n) for n in sizes] if labels is None else labels
    made = bench(labels, *quiet, *overrides, classes=C)
    made.world.pixels = rng.normal(0, 1, made.world.pixels.shape).astype(np.float32)
    return made


def weights(made, state, group=0):
    return np.asarray(made.federation.get(state.models[group_model(group)])["trainable"])


def remember(made, name, values):
    """Write one array into the memory of every client."""
    each = {k: {"new": np.asarray(own)} for k, own in enumerate(values)}
    made.federation.map(lambda _, memory, a: ({**memory, name: a["new"]}, None), each=each)


def current(made):
    kept = made.federation.map(lambda c, memory, _: (memory, memory.get("labels", c.record.labels)))
    return [own.tolist() for own in kept.values()]


# ---- stage 1: noisy clients and labels -------------------------------------------------------


def test_clients_of_high_lid_are_noisy_by_the_share_of_their_large_losses(bench):
    made = clients(bench, sizes=(4, 4, 4, 4))
    remember(made, "losses", [[0.1] * 4, [0.1] * 4, [0.1, 5.0, 5.1, 4.9], [2.0] * 4])
    lid = {"0": 1.0, "1": 1.1, "2": 9.0, "3": 9.2}
    context = made.round()

    state = noisy_clients(context, State(groups=IN_ONE, values={"lid": lid}))

    # Client 3's losses cannot be told apart: mu = 0.
    assert state.values["noisy"] == [2, 3]
    assert state.values["noise_level"] == {"0": 0.0, "1": 0.0, "2": 0.75, "3": 0.0}
    assert json.loads(json.dumps(state.values)) == state.values
    assert context.entry["bytes"]["up"] == {"noise level": 2 * 4}


def test_the_lid_of_clients_is_scored_as_their_noisiness(bench, monkeypatch):
    made, given = clients(bench, sizes=(4, 4, 4, 4)), []
    remember(made, "losses", [[0.1] * 4] * 4)
    lid = {"0": 1.0, "1": 1.1, "2": 9.0, "3": 9.2}
    context = made.round()
    judge = lambda *told, labels: given.append(told) or {}  # noqa: E731
    monkeypatch.setattr(context.evaluator, "noisy_clients", judge)

    noisy_clients(context, State(groups=IN_ONE, values={"lid": lid}))

    ((found, scores, levels),) = given
    assert (found, scores) == ([2, 3], {0: 1.0, 1: 1.1, 2: 9.0, 3: 9.2})
    assert levels.keys() == scores.keys()
    assert levels[0] == levels[1] == 0.0


def test_equal_lid_makes_nobody_noisy(bench):
    made = clients(bench)
    lid = dict.fromkeys("0123", 3.0)

    state = noisy_clients(made.round(), State(groups=IN_ONE, values={"lid": lid}))

    assert state.values["noisy"] == []
    assert clean_clients(state, 0.1) == [0, 1, 2, 3]
    assert relabel(made.round(), state, ratio=0.5, threshold=0.5) is state


def sure_of(label, by):
    trainable = np.zeros(4 * C + C, np.float32)
    trainable[4 * C + label] = by
    return {"trainable": trainable, "buffers": np.zeros(0, np.float32)}


@pytest.mark.parametrize(
    ("ratio", "threshold", "new"),
    [
        (0.5, 0.5, [[0] * 4, [0, 0, 1, 0]]),  # floor(4 * 0.75 * 0.5) = 1: the largest loss
        (0.9, 0.5, [[0] * 4, [0, 1, 1, 0]]),  # floor(2.7) = 2
        (None, 0.5, [[0] * 4, [1, 1, 1, 1]]),  # end of stage 2: all samples
        (None, 0.9, [[0] * 4, [0, 0, 0, 0]]),  # p = e / (1 + e) = 0.73 is not above 0.9
    ],
)
def test_noisy_clients_take_confident_predictions_for_their_doubtful_labels(
    bench, ratio, threshold, new
):
    made = clients(bench, labels=[[0] * 4, [0] * 4])
    remember(made, "losses", [[9.0] * 4, [0.1, 5.0, 5.1, 4.9]])
    models = {"group/0": made.federation.put(sure_of(1, by=1.0))}
    values = {"noisy": [1], "noise_level": {"0": 0.0, "1": 0.75}}
    context = made.round()

    relabel(
        context,
        State(groups={0: 0, 1: 0}, models=models, values=values),
        ratio=ratio,
        threshold=threshold,
    )

    assert current(made) == new
    assert context.entry["bytes"]["down"] == {"model to relabel by": MODEL_BYTES}
    assert context.entry["labels"]["noise_after"] == np.mean(new)  # all true labels are 0


def test_the_number_of_doubtful_labels_is_not_lost_in_binary(bench):
    made = clients(bench, labels=[[0] * 200])  # 200 * 0.29 * 0.5 is 28.999... as floats
    remember(made, "losses", [np.arange(200.0)])
    models = {"group/0": made.federation.put(sure_of(1, by=1.0))}
    values = {"noisy": [0], "noise_level": {"0": 0.29}}

    relabel(
        made.round(), State(groups={0: 0}, models=models, values=values), ratio=0.5, threshold=0.5
    )

    assert sum(current(made)[0]) == 29


# ---- stages 2 and 3 --------------------------------------------------------------------------


def test_a_group_without_clean_clients_gives_its_cleanest_tenth():
    levels = {str(k): 0.9 - 0.01 * k for k in range(12)} | {"12": 0.1, "13": 0.11}
    groups = dict.fromkeys(range(12), 0) | {12: 1, 13: 1}

    found = clean_clients(State(groups=groups, values={"noise_level": levels}), 0.1)

    assert found == [10, 11, 12]  # ceil(12 / 10) = 2 of the first group; up to kappa of the second


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.5, 4), (0.01, 1), (1.0, 4)])
def test_stage_2_draws_a_share_of_all_clients_among_the_clean_ones(bench, share, count):
    made = clients(bench, f"train.participation={share}", sizes=(5,) * 10)
    levels = {str(k): 0.0 if k < 4 else 0.5 for k in range(10)}
    state = State(groups=dict.fromkeys(range(10), 0), values={"noise_level": levels})

    found = clean_participants(made.round(), state, 0.1)

    assert len(found) == len(set(found)) == count  # min(C N, |clean|)
    assert set(found) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ((), (2, 10, 68)),
        (("method.sweep_rounds=20",), (2, 10, 30)),
        (("train.rounds=4",), (2, 1, 1)),
    ],
)
def test_stages_of_fb_nlls_budget(given, rounds):
    config = load_config("quickstart", ["method=fedcorr", "train.rounds=80", *given])

    names = ("identify", "finetune", "train")
    found = [(stage.name, stage.rounds) for stage in config.method.stages(config)]
    assert found == [("group", 1), *zip(names, rounds, strict=True)]


def test_local_training_is_the_configs_or_fedcorrs_own(bench):
    context = clients(bench, "train.weight_decay=0.001").round()

    ours = FedCorr()._local(context)
    theirs = FedCorr(local="original")._local(context)

    assert ours["train"] == replace(context.config.train, mixup=1.0)
    assert ours["server"].weights == "samples"
    found = theirs["train"]
    assert (found.lr, found.momentum, found.batch_size, found.epochs) == (0.03, 0.5, 10, 5)
    assert (found.optimizer, found.weight_decay, found.mixup) == ("sgd", 0.0, 1.0)


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_odd_clients_go_through_all_stages(bench, share):
    made = clients(bench, "train.rounds=4", f"train.participation={share}", sizes=(0, 1, 2, 3, 25))
    state = State()
    for stage in FedCorr().stages(made.config):
        for number in range(stage.rounds):
            last = number + 1 == stage.rounds
            context = made.round(number, last=last, stage=stage.name)
            state = stage.step(context, state)

    assert np.isfinite(weights(made, state)).all()
    assert all(math.isfinite(lid) for lid in state.values["lid"].values())


def test_one_neighbour_is_refused():
    with pytest.raises(SettingError, match="neighbours must be at least 2, got 1; 20 is"):
        FedCorr(neighbours=1)


def test_fednova_beside_the_pull_of_stage_1_is_refused():
    nova = ["method=fedcorr", "server.optimizer=fednova"]
    config = load_config("quickstart", [*nova, "method.sweep_fraction=0.5"])
    other = load_config("quickstart", nova)  # one client after another

    with pytest.raises(ConfigError, match=r"method\.proximal is 5; .*set method\.proximal to 0"):
        config.method.check(config, classes=10, dimensions={})
    other.method.check(other, classes=10, dimensions={})

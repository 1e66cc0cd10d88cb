"""FedCorr: sweeps, the pull, noisy clients, their labels and the schedule, worked by hand."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.fedcorr import FedCorr, PullToReceived, clean_clients, find_noisy_clients
from raysim.models.losses import SmoothedCrossEntropy
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import train_groups
from raysim.steps.server import group_model

C, SIZES = 2, (12, 20, 30, 16)
MODEL_BYTES = (4 * C + C) * 4
"""Logistic regression on 2x2 images."""
IN_ONE = dict.fromkeys(range(4), 0)
PLAIN = FedCorr(neighbours=5, mixup=0.0)


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


def memory_of(made, name):
    return made.federation.map(lambda _, memory, __: (memory, memory[name]))


# ---- stage 1: the model goes from client to client ---------------------------------------------


def test_the_model_goes_from_client_to_client(bench):
    made = clients(bench)
    order = stream(0, "sweep", 0, 0).permutation(4)
    by_hand = State(groups=IN_ONE)
    for k in order:
        by_hand = train_groups(made.round(), by_hand, [int(k)])

    state = PLAIN.sweep(made.round(), State(groups=IN_ONE))

    assert weights(made, state).tobytes() == weights(made, by_hand).tobytes()


def test_groups_are_swept_side_by_side(bench):
    made = clients(bench)
    groups = {0: 0, 1: 0, 2: 1, 3: 1}

    both = PLAIN.sweep(made.round(), State(groups=groups))

    alone = clients(bench)
    alone.federation.clients = [2, 3]
    one = PLAIN.sweep(alone.round(), State(groups={2: 1, 3: 1}))
    assert weights(made, both, 1).tobytes() == weights(alone, one, 1).tobytes()


@pytest.mark.parametrize("rule", ["samples", "uniform"])
def test_a_sweep_of_everyone_at_once_is_fedavg_and_one_by_one_is_not(bench, rule):
    made = clients(bench, f"server.weights={rule}")
    one_by_one = replace(PLAIN, weights=rule)
    fedavg = weights(made, train_groups(made.round(), State(groups=IN_ONE), range(4)))

    at_once = replace(one_by_one, sweep_fraction=1.0).sweep(made.round(), State(groups=IN_ONE))
    swept = one_by_one.sweep(made.round(), State(groups=IN_ONE))

    np.testing.assert_allclose(weights(made, at_once), fedavg, atol=1e-6)
    assert not np.allclose(weights(made, swept), fedavg, atol=1e-3)


def test_a_sweep_sends_every_client_a_model_and_gets_it_back_with_one_number(bench):
    context = clients(bench).round()

    PLAIN.sweep(context, State(groups=IN_ONE))

    # raysim/docs/sheets/metrics.md, "Bytes": N rounds of one client, + 1 float.
    model = 4 * MODEL_BYTES
    assert context.entry["bytes"] == {"down": {"model": model}, "up": {"model": model, "lid": 16}}


def test_lid_adds_up_and_losses_are_those_of_the_last_sweep(bench):
    made = clients(bench)
    one = PLAIN.sweep(made.round(), State(groups=IN_ONE))
    losses = memory_of(made, "losses")
    stored = State(groups=IN_ONE, values=json.loads(json.dumps(one.values)))

    again = PLAIN.sweep(made.round(), stored)  # from the first model, so with the same LID

    assert again.values["lid"] == {k: 2 * lid for k, lid in one.values["lid"].items()}
    assert all(lid > 0 for lid in one.values["lid"].values())
    assert [len(own) for own in losses.values()] == list(SIZES)
    assert all(np.array_equal(memory_of(made, "losses")[k], losses[k]) for k in range(4))


@pytest.mark.parametrize("double", [False, True])
def test_losses_are_cross_entropies_of_the_own_model_on_the_own_labels(bench, double):
    made = clients(bench, sizes=(9,))
    method = replace(PLAIN, sweep_fraction=1.0, double_softmax=double)
    state = method.sweep(made.round(), State(groups={0: 0}))

    flat = weights(made, state).astype(np.float64)
    logits = made.world.pixels[made.ids[0]].reshape(-1, 4) @ flat[:8].reshape(C, 4).T + flat[8:]
    outputs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    if double:  # the released code takes softmax outputs for logits
        outputs = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    expected = -np.log(outputs[np.arange(9), made.labels[0]])
    np.testing.assert_allclose(memory_of(made, "losses")[0], expected, atol=1e-5)
    low, high = math.log(1 + 1 / math.e), math.log(1 + math.e)
    assert not double or (low <= expected.min() and expected.max() <= high)


# ---- the pull --------------------------------------------------------------------------------


@pytest.mark.parametrize(("squared", "value", "slope"), [(False, 10.0, 2.0), (True, 50.0, 20.0)])
def test_the_pull_is_the_norm_or_its_square(squared, value, slope):
    # At distance (3, 4) with strength 2: 2 * 5 with gradient 2 * (0.6, 0.8), or 2 * 25 with
    # 2 * 2 * (3, 4), five times (0.6, 0.8) each.
    module = torch.nn.Linear(2, 1, bias=False)
    pull = PullToReceived(2.0, squared=squared)
    at_first = pull(module)
    zero = torch.autograd.grad(at_first, list(module.parameters()))[0]
    with torch.no_grad():
        module.weight += torch.tensor([[3.0, 4.0]])

    found = pull(module)

    gradient = torch.autograd.grad(found, list(module.parameters()))[0]
    assert at_first.item() == pytest.approx(0.0, abs=1e-5)
    assert not zero.any()
    assert found.item() == pytest.approx(value)
    np.testing.assert_allclose(gradient, [[0.6 * slope, 0.8 * slope]], rtol=1e-5)


def test_the_noisier_a_client_the_closer_it_stays(bench):
    def moved(level):
        made = clients(bench, sizes=(40,))
        values = {"noise_level": {"0": level}}
        start = weights(made, train_groups(made.round(), State(groups={0: 0}), []))
        method = replace(PLAIN, proximal=0.5)
        state = method.sweep(made.round(), State(groups={0: 0}, values=values))
        return np.abs(weights(made, state) - start).sum()

    assert moved(0.0) > moved(0.3) > moved(0.9)


def test_labels_are_smoothed_in_every_stage_if_asked(bench):
    smooth = SmoothedCrossEntropy(smoothing=0.1, temperature=1.0)
    made = clients(bench, "train.rounds=4")
    method = replace(PLAIN, loss=smooth, proximal=0.0)

    state = method.sweep(made.round(), State(groups=IN_ONE))

    by_hand = State(groups=IN_ONE)
    for k in stream(0, "sweep", 0, 0).permutation(4):
        by_hand = train_groups(made.round(), by_hand, [int(k)], loss=smooth)
    plain = PLAIN.sweep(made.round(), State(groups=IN_ONE))
    assert weights(made, state).tobytes() == weights(made, by_hand).tobytes()
    assert weights(made, state).tobytes() != weights(made, plain).tobytes()
    assert "loss" not in FedCorr().local_training(made.round())


def test_fednovas_count_of_steps_is_sent_with_every_model(bench):
    made = clients(bench, "server.optimizer=fednova")
    swept, merged = made.round(), made.round()

    PLAIN.sweep(swept, State(groups=IN_ONE))
    train_groups(merged, State(groups=IN_ONE), range(4))

    for context in (swept, merged):
        assert context.entry["bytes"]["up"]["effective steps"] == 4 * 4


# ---- stage 1: noisy clients and labels -------------------------------------------------------


def test_clients_of_high_lid_are_noisy_by_the_share_of_their_large_losses(bench):
    made = clients(bench, sizes=(4, 4, 4, 4))
    remember(made, "losses", [[0.1] * 4, [0.1] * 4, [0.1, 5.0, 5.1, 4.9], [2.0] * 4])
    lid = {"0": 1.0, "1": 1.1, "2": 9.0, "3": 9.2}
    context = made.round()

    state = find_noisy_clients(context, State(groups=IN_ONE, values={"lid": lid}))

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

    find_noisy_clients(context, State(groups=IN_ONE, values={"lid": lid}))

    ((found, scores, levels),) = given
    assert (found, scores) == ([2, 3], {0: 1.0, 1: 1.1, 2: 9.0, 3: 9.2})
    assert levels.keys() == scores.keys()
    assert levels[0] == levels[1] == 0.0


def test_equal_lid_makes_nobody_noisy(bench):
    made = clients(bench)
    lid = dict.fromkeys("0123", 3.0)

    state = find_noisy_clients(made.round(), State(groups=IN_ONE, values={"lid": lid}))

    assert state.values["noisy"] == []
    assert clean_clients(state, 0.1) == [0, 1, 2, 3]
    assert FedCorr().relabel_noisy_clients(made.round(), state, ratio=0.5) is state


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

    state = State(groups={0: 0, 1: 0}, models=models, values=values)
    FedCorr(confidence=threshold).relabel_noisy_clients(context, state, ratio=ratio)

    assert current(made) == new
    assert context.entry["bytes"]["down"] == {"model to relabel by": MODEL_BYTES}
    assert context.entry["labels"]["noise_after"] == np.mean(new)  # all true labels are 0


def test_the_number_of_doubtful_labels_is_not_lost_in_binary(bench):
    made = clients(bench, labels=[[0] * 200])  # 200 * 0.29 * 0.5 is 28.999... as floats
    remember(made, "losses", [np.arange(200.0)])
    models = {"group/0": made.federation.put(sure_of(1, by=1.0))}
    values = {"noisy": [0], "noise_level": {"0": 0.29}}

    state = State(groups={0: 0}, models=models, values=values)
    FedCorr().relabel_noisy_clients(made.round(), state, ratio=0.5)

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

    found = FedCorr().clean_participants(made.round(), state)

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

    ours = FedCorr().local_training(context)
    theirs = FedCorr(local="original").local_training(context)

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

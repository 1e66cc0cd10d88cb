"""FedCorr's stage 1: the model goes from client to client, and stays near for noisy ones."""

import json
import math

import numpy as np
import pytest
import torch

from raysim.methods.fedcorr import FedCorr
from raysim.models.losses import SmoothedCrossEntropy
from raysim.protocols import State
from raysim.seeding import stream
from raysim.steps.group_training import train_groups
from raysim.steps.identification import PullToReceived, sweep
from raysim.steps.server import group_model

C, SIZES = 2, (12, 20, 30, 16)
MODEL_BYTES = (4 * C + C) * 4
"""Logistic regression on 2x2 images."""
IN_ONE = dict.fromkeys(range(4), 0)
SWEEP = {
    "fraction": 0.0,
    "pull": 5.0,
    "squared": False,
    "neighbours": 5,
    "double_softmax": False,
}


def clients(bench, *overrides, sizes=SIZES, labels=None):
    rng = stream(0, "test.fedcorr")
    quiet = ("evaluate.every=100", "train.epochs=1", "train.batch_size=8", "train.lr=0.5")
    labels = [rng.integers(0, C, n) for n in sizes] if labels is None else labels
    made = bench(labels, *quiet, *overrides, classes=C)
    made.world.pixels = rng.normal(0, 1, made.world.pixels.shape).astype(np.float32)
    return made


def weights(made, state, group=0):
    return np.asarray(made.federation.get(state.models[group_model(group)])["trainable"])


def memory_of(made, name):
    return made.federation.map(lambda _, memory, __: (memory, memory[name]))


def test_the_model_goes_from_client_to_client(bench):
    made = clients(bench)
    order = stream(0, "sweep", 0, 0).permutation(4)
    by_hand = State(groups=IN_ONE)
    for k in order:
        by_hand = train_groups(made.round(), by_hand, [int(k)])

    state = sweep(made.round(), State(groups=IN_ONE), **SWEEP)

    assert weights(made, state).tobytes() == weights(made, by_hand).tobytes()


def test_groups_are_swept_side_by_side(bench):
    made = clients(bench)
    groups = {0: 0, 1: 0, 2: 1, 3: 1}

    both = sweep(made.round(), State(groups=groups), **SWEEP)

    alone = clients(bench)
    alone.federation.clients = [2, 3]
    one = sweep(alone.round(), State(groups={2: 1, 3: 1}), **SWEEP)
    assert weights(made, both, 1).tobytes() == weights(alone, one, 1).tobytes()


@pytest.mark.parametrize("rule", ["samples", "uniform"])
def test_a_sweep_of_everyone_at_once_is_fedavg_and_one_by_one_is_not(bench, rule):
    made = clients(bench, f"server.weights={rule}")
    fedavg = weights(made, train_groups(made.round(), State(groups=IN_ONE), range(4)))

    at_once = sweep(made.round(), State(groups=IN_ONE), **{**SWEEP, "fraction": 1.0})
    one_by_one = sweep(made.round(), State(groups=IN_ONE), **SWEEP)

    np.testing.assert_allclose(weights(made, at_once), fedavg, atol=1e-6)
    assert not np.allclose(weights(made, one_by_one), fedavg, atol=1e-3)


def test_a_sweep_sends_every_client_a_model_and_gets_it_back_with_one_number(bench):
    context = clients(bench).round()

    sweep(context, State(groups=IN_ONE), **SWEEP)

    # raysim/docs/sheets/metrics.md, "Bytes": N rounds of one client, + 1 float.
    model = 4 * MODEL_BYTES
    assert context.entry["bytes"] == {"down": {"model": model}, "up": {"model": model, "lid": 16}}


def test_lid_adds_up_and_losses_are_those_of_the_last_sweep(bench):
    made = clients(bench)
    one = sweep(made.round(), State(groups=IN_ONE), **SWEEP)
    losses = memory_of(made, "losses")
    stored = State(groups=IN_ONE, values=json.loads(json.dumps(one.values)))

    again = sweep(made.round(), stored, **SWEEP)  # from the first model, so with the same LID

    assert again.values["lid"] == {k: 2 * lid for k, lid in one.values["lid"].items()}
    assert all(lid > 0 for lid in one.values["lid"].values())
    assert [len(own) for own in losses.values()] == list(SIZES)
    assert all(np.array_equal(memory_of(made, "losses")[k], losses[k]) for k in range(4))


@pytest.mark.parametrize("double", [False, True])
def test_losses_are_cross_entropies_of_the_own_model_on_the_own_labels(bench, double):
    made = clients(bench, sizes=(9,))
    state = sweep(
        made.round(), State(groups={0: 0}), **{**SWEEP, "fraction": 1.0, "double_softmax": double}
    )

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
        state = sweep(made.round(), State(groups={0: 0}, values=values), **{**SWEEP, "pull": 0.5})
        return np.abs(weights(made, state) - start).sum()

    assert moved(0.0) > moved(0.3) > moved(0.9)


def test_labels_are_smoothed_in_every_stage_if_asked(bench):
    smooth = SmoothedCrossEntropy(smoothing=0.1, temperature=1.0)
    made = clients(bench, "train.rounds=4")
    method = FedCorr(loss=smooth, mixup=0.0, proximal=0.0, finetune_rounds=1, iterations=1)

    state = sweep(made.round(), State(groups=IN_ONE), **SWEEP, **method._local(made.round()))

    by_hand = State(groups=IN_ONE)
    for k in stream(0, "sweep", 0, 0).permutation(4):
        by_hand = train_groups(made.round(), by_hand, [int(k)], loss=smooth)
    plain = sweep(made.round(), State(groups=IN_ONE), **SWEEP, **FedCorr()._local(made.round()))
    assert weights(made, state).tobytes() == weights(made, by_hand).tobytes()
    assert weights(made, state).tobytes() != weights(made, plain).tobytes()
    assert "loss" not in FedCorr()._local(made.round())


def test_fednovas_count_of_steps_is_sent_with_every_model(bench):
    made = clients(bench, "server.optimizer=fednova")
    swept, merged = made.round(), made.round()

    sweep(swept, State(groups=IN_ONE), **SWEEP)
    train_groups(merged, State(groups=IN_ONE), range(4))

    for context in (swept, merged):
        assert context.entry["bytes"]["up"]["effective steps"] == 4 * 4

"""IFCA-PFL and IFCA: groups by loss, what they send, and where FedAvg would differ."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysim.errors import ConfigError
from raysim.methods import ifca
from raysim.methods.ifca import (
    Ifca,
    IfcaPfl,
    count_losses,
    first_groups,
    group_models,
    loss_matrix,
    reassociated,
)
from raysim.models.zoo import Logistic
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import train_round
from raysim.steps.server import group_model

C = 2
MODEL_BYTES = (4 * C + C) * 4
"""Logistic regression on 2x2 images."""


def clients(bench, labels, *overrides, groups=2):
    quiet = ("evaluate.every=100", "train.epochs=1", "train.lr=0.5")
    made = bench(labels, *quiet, *overrides, classes=C, groups=groups)
    made.world.pixels = (
        stream(0, "test.ifca").normal(0, 1, made.world.pixels.shape).astype(np.float32)
    )
    return made


def sure_of(label):
    """A model with zero weights that is biased to one class by 2."""
    trainable = np.zeros(4 * C + C, np.float32)
    trainable[4 * C + label] = 2.0
    return {"trainable": trainable, "buffers": np.zeros(0, np.float32)}


def with_models(made, groups):
    models = {group_model(g): made.federation.put(sure_of(g)) for g in range(C)}
    return State(groups=dict(enumerate(groups)), models=models)


def two_tasks(bench, *overrides):
    """Six clients; the class is the sign of the first pixel, turned round for half of them."""
    made = clients(bench, [[0] * 40] * 6, *overrides)
    for k, ids in enumerate(made.ids):
        made.labels[k][:] = (made.world.pixels[ids, 0, 0, 0] > 0) ^ (k >= 3)
    return made


def run(made, method, rounds):
    """Run a method for some rounds; return the state and the records."""
    group, train = method.stages(made.config)
    context = made.round()
    state, entries = group.step(context, State()), [context.entry]
    for number in range(rounds):
        context = made.round(number)
        state = train.step(context, state)
        entries.append(context.entry)
    return state, entries


# ---- losses and groups -----------------------------------------------------------------------


def test_losses_are_mean_cross_entropies_on_the_own_labels(bench):
    made = clients(bench, [[0, 0, 0], [1, 1], [0, 1], []])
    state = with_models(made, (0, 0, 0, 0))

    found = loss_matrix(made.round(), group_models(state, 2), range(4))

    # Logits (2, 0): -log p is log(1 + e^-2) = 0.1269 for the favoured class, 2.1269 for the other.
    right, wrong = math.log1p(math.exp(-2)), 2 + math.log1p(math.exp(-2))
    expected = [[right, wrong], [wrong, right], [(right + wrong) / 2] * 2, [0.0, 0.0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_everyone_joins_its_best_model_when_no_group_stays_empty(bench):
    made = clients(bench, [[0], [1], [0], [1]])
    context = made.round()

    state = reassociated(context, with_models(made, (1, 1, 0, 0)), num_groups=2)

    assert state.groups == {0: 0, 1: 1, 2: 0, 3: 1}
    assert context.entry["association"] == {"changed": 2, "forced": False}
    assert context.entry["groups"] == [0, 1, 0, 1]


def test_a_group_that_would_be_empty_keeps_its_size(bench):
    # All like model 0 best; of two clients in group 1 the least unwilling are kept: losses under
    # model 0 are smallest for the clean 0 and 1, which group 0 takes first.
    made = clients(bench, [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]])
    context = made.round()

    state = reassociated(context, with_models(made, (1, 1, 0, 0)), num_groups=2)

    assert state.groups == {0: 0, 1: 0, 2: 1, 3: 1}
    assert context.entry["association"] == {"changed": 4, "forced": True}


def test_models_are_drawn_until_every_group_has_a_client(bench):
    made = two_tasks(bench)
    context = made.round()

    state = first_groups(context, State(), num_groups=2, count=count_losses)

    losses = loss_matrix(made.round(), group_models(state, 2), range(6))
    assert set(state.groups.values()) == {0, 1}
    assert list(state.groups.values()) == losses.argmin(axis=1).tolist()
    tries = context.entry["association"]["tries"]
    assert context.entry["association"]["forced"] is False
    assert context.entry["bytes"]["down"]["model"] == tries * 6 * 2 * MODEL_BYTES


@pytest.mark.parametrize(("filled", "forced"), [(True, False), (False, True)])
def test_the_last_try_counts_as_forced_only_if_it_failed(bench, monkeypatch, filled, forced):
    made = two_tasks(bench)
    monkeypatch.setattr(ifca, "DRAWS", 2)
    answers = iter([False, filled])
    monkeypatch.setattr(ifca, "fills_all", lambda *_, **__: next(answers))
    context = made.round()

    state = first_groups(context, State(), num_groups=2, count=count_losses)

    assert context.entry["association"] == {"tries": 2, "forced": forced}
    if forced:  # dealt out in equal shares
        assert sorted(state.groups.values()) == [0, 0, 0, 1, 1, 1]


# ---- the methods -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", [IfcaPfl(), Ifca()])
def test_opposite_tasks_end_in_groups_of_their_own(bench, method):
    made = two_tasks(bench)
    state, _ = run(made, method, 8)

    assert (
        len(set(list(state.groups.values())[:3])) == len(set(list(state.groups.values())[3:])) == 1
    )
    assert state.groups[0] != state.groups[5]


def test_one_model_for_all_cannot_learn_what_ifca_pfl_learns(bench):
    made = two_tasks(bench)
    _, entries = run(made, IfcaPfl(), 8)
    single = State(groups=dict.fromkeys(range(6), 0))
    for number in range(8):
        context = made.round(number)
        single = train_round(context, single)

    # With one model the two tasks cancel: no better than the log 2 of a coin.
    assert context.entry["loss"] > 0.6
    assert entries[-1]["loss"] < 0.4


def test_a_round_of_ifca_pfl_sends_all_models_to_all_and_the_losses_back(bench):
    _, entries = run(two_tasks(bench), IfcaPfl(), 1)

    # raysim/docs/sheets/metrics.md, "Bytes": down K M W; up K W and K M numbers.
    up = {"model": 6 * MODEL_BYTES, "losses": 6 * 2 * 4}
    assert entries[1]["bytes"] == {"down": {"model": 6 * 2 * MODEL_BYTES}, "up": up}


def test_a_round_of_ifca_sends_all_models_to_participants_and_their_choice_back(bench):
    made = two_tasks(bench, "train.participation=0.5")
    made.config = replace(made.config, evaluate=replace(made.config.evaluate, every=1))

    _, entries = run(made, Ifca(), 1)

    # Losses for the evaluation of who did not take part are no protocol traffic.
    up = {"model": 3 * MODEL_BYTES, "choice": 3 * 4}
    assert entries[1]["bytes"] == {"down": {"model": 3 * 2 * MODEL_BYTES}, "up": up}
    assert "accuracy" in entries[1]


def test_frozen_groups_stay_and_everyone_gets_one_model_only(bench):
    made = two_tasks(bench)
    free, _ = run(made, IfcaPfl(), 8)
    state, entries = run(made, IfcaPfl(freeze_after=1), 8)

    frozen = [e for e in entries if "association" not in e]
    assert frozen
    assert all(e["bytes"]["down"] == {"model": 6 * MODEL_BYTES} for e in frozen)
    assert all("losses" not in e["bytes"]["up"] for e in frozen)
    assert all("groups" in e for e in frozen)
    assert state.groups == free.groups
    assert json.loads(json.dumps(state.values)) == state.values


def test_the_learning_rate_of_ifca_shrinks_every_round(bench):
    made = two_tasks(bench, "train.lr=0.4")
    state, _ = run(made, Ifca(), 0)

    def after_round_1(decay, lr):
        other = two_tasks(bench, f"train.lr={lr}")
        start = {
            name: other.federation.put(made.federation.get(handle))
            for name, handle in state.models.items()
        }
        step = Ifca(lr_decay=decay).stages(other.config)[1].step
        new = step(other.round(1), replace(state, models=start))
        return other.federation.get(new.models["group/0"])["trainable"].tobytes()

    assert after_round_1(0.5, 0.4) == after_round_1(1.0, 0.2) != after_round_1(1.0, 0.4)


@pytest.mark.parametrize("method", [IfcaPfl(), Ifca()])
def test_clients_without_or_with_one_sample_and_partial_rounds_run(bench, method):
    made = clients(bench, [[], [1], [0, 1, 0], [1, 1]], "train.participation=0.5")

    state, _ = run(made, method, 3)

    assert sorted(state.groups) == [0, 1, 2, 3]


def test_more_groups_than_clients_are_refused():
    partition = SimpleNamespace(groups=5, clients=4)
    config = SimpleNamespace(data=SimpleNamespace(partition=partition))

    for method in (IfcaPfl(), Ifca()):
        with pytest.raises(
            ConfigError, match=r"groups is 5, but .*clients is 4; .*raise .*or lower"
        ):
            method.check(config, classes=2, dimensions={})
    partition.clients = 5
    IfcaPfl().check(config, classes=2, dimensions={})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: IfcaPfl(freeze_after=0), "freeze_after"),
        (lambda: Ifca(smallest_share=1.0), "smallest_share"),
        (lambda: Ifca(lr_decay=0.0), "lr_decay"),
    ],
)
def test_settings_out_of_range_are_refused(make, field):
    with pytest.raises(SettingError, match=field):
        make()


def test_the_first_choice_does_not_read_statistics_of_untrained_batch_norm(run_tiny):
    quick = ("train.rounds=2", "train.epochs=1", "evaluate.every=100", "model=small_cnn")
    found = run_tiny("ifca", *quick)

    records = [json.loads(line) for line in (found.run_dir / "rounds.jsonl").open()]
    assert records[1]["groups"] == records[0]["groups"]


def test_a_file_that_makes_all_models_equal_is_refused(bench, tmp_path):
    made = clients(bench, [[0, 1], [1, 0]])
    tree = {"head.weight": torch.ones(C, 4), "head.bias": torch.zeros(C)}
    torch.save(tree, tmp_path / "w.pth")
    made.config = replace(made.config, model=Logistic(weights=str(tmp_path / "w.pth")))

    with pytest.raises(ConfigError, match=r"model\.weights gives all 2 models the same weights"):
        first_groups(made.round(), State(), num_groups=2, count=count_losses)

"""FedFixer's rounds: who counts how much, what is kept, what an ablation leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.methods.fedfixer import FedFixer
from raysim.protocols import State
from raysim.settings import SettingError
from raysim.steps.sessions import sent_model


def run_round(made, method, number=0, state=None):
    context = made.round(number)
    state = State(groups=dict.fromkeys(range(len(made.labels)), 0)) if state is None else state
    *_, stage = method.stages(made.config)
    return stage.step(context, state), context


def fake_training(monkeypatch, counts):
    """Let clients of so many samples select so many of them; weights become their samples."""

    def train(self, session, memory, where):
        size = len(session.labels)
        with torch.no_grad():
            for part in session.weights(0):
                part.fill_(size)
        return memory, sent_model(session, weight=float(counts[size]), kept=counts[size])

    monkeypatch.setattr(FedFixer, "train", train)


def test_clients_count_by_what_they_selected(bench, monkeypatch):
    made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)
    fake_training(monkeypatch, {3: 1, 2: 3})

    state, _ = run_round(made, FedFixer())

    # (1 x 3 + 3 x 2) / 4; by samples it would be 2.6, unweighted 2.5.
    tree = made.federation.get(state.models["group/0"])
    np.testing.assert_allclose(tree["trainable"], 2.25, rtol=1e-6)


@pytest.mark.parametrize(("selected", "kept"), [(0, True), (1, False)])
def test_the_model_stays_if_nobody_selects_a_sample(bench, monkeypatch, selected, kept):
    made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)
    before, _ = run_round(made, FedFixer())
    fake_training(monkeypatch, {3: selected, 2: 0})

    after, _ = run_round(made, FedFixer(warmup=0), 1, before)

    first, second = (made.federation.get(s.models["group/0"]) for s in (before, after))
    assert np.array_equal(first["trainable"], second["trainable"]) == kept


def test_nothing_is_judged_before_the_warm_up_is_over(bench):
    made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)

    judged = [
        "selection" in run_round(made, FedFixer(warmup=2), number)[1].entry for number in range(4)
    ]

    assert judged == [False, False, False, True]


def test_the_personal_model_is_kept_only_without_the_distance_term(bench):
    for without, keeps in (("nothing", False), ("distance", True)):
        made = bench([[0, 0, 1], [1, 0]], "model.name=logistic", "train.epochs=1", classes=2)
        run_round(made, FedFixer(without=without))
        memory = made.federation.map(memory_task)
        assert all(("personal/trainable" in names) == keeps for names in memory.values())


def memory_task(client, memory, arguments):
    return memory, sorted(memory)


@pytest.mark.parametrize(
    "wrong", [{"warmup": -1}, {"distance": -1.0}, {"personal_lr": 0.0}, {"inner_steps": 0}]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        FedFixer(**wrong)

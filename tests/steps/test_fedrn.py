"""FedRN and the oracle: who judges, on what clients train, what is sent."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.methods.fedrn import FedRn
from raysim.methods.oracle import Oracle
from raysim.models.evaluation import sample_losses
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.neighbours import judges

LABELS = [[0, 0, 1, 1, 0, 1], [1, 1, 0, 0], [0, 1, 1]]


def made_bench(bench):
    return bench(LABELS, "model.name=logistic", "train.epochs=1", "train.rounds=5", classes=2)


def start(made) -> State:
    return State(groups=dict.fromkeys(range(len(made.labels)), 0))


def rounds(made, method, count: int) -> tuple[State, list]:
    """Run rounds of the warm-up, then of training."""
    state, contexts = start(made), []
    stages = method.stages(made.config)[1:]
    for stage in stages:
        for number in range(min(stage.rounds, count)):
            contexts.append(made.round(number))
            state = stage.step(contexts[-1], state)
    return state, contexts


def test_the_warm_up_is_fedavg_that_remembers_every_client(bench):
    made = made_bench(bench)

    state, (first, *_) = rounds(made, FedRn(warmup_rounds=1), 1)

    assert "selection" not in first.entry
    assert {"upload/0", "upload/1", "upload/2"} <= state.models.keys()
    known = state.values["neighbours"]
    assert sorted(known) == ["0", "1", "2"]
    assert len(known["0"]["probe"]) == 2
    assert sum(known["0"]["probe"]) == pytest.approx(1.0)  # softmax


def test_a_client_is_judged_by_its_own_last_model_and_the_best_others(bench):
    made = made_bench(bench)
    state, _ = rounds(made, FedRn(warmup_rounds=1), 1)
    known = {
        "0": {"expertise": 0.9, "probe": [1.0, 0.0]},
        "1": {"expertise": 0.8, "probe": [0.0, 1.0]},
        "2": {"expertise": 0.1, "probe": [1.0, 0.1]},
    }
    state = State(groups=state.groups, models=state.models, values={"neighbours": known})

    context = made.round(3)
    found = judges(context, state, [0], count=1, weight=1.0, choice="reliable")

    # Expertise alone decides: 1 is the next best after 0 itself.
    assert found[0]["judges"] == [state.models["upload/0"], state.models["upload/1"]]
    assert found[0]["scores"] == pytest.approx([1.0, 0.7 / 0.8])
    assert context.entry["bytes"]["down"]["neighbour models"] == state.models["upload/1"].nbytes
    alike = judges(made.round(3), state, [0], count=1, weight=0.0, choice="reliable")
    assert alike[0]["judges"][1] == state.models["upload/2"]


def test_a_client_without_an_upload_is_judged_by_the_received_model(bench):
    made = made_bench(bench)

    found = judges(made.round(), start(made), [1], count=2, weight=0.6, choice="reliable")

    assert found == {1: {"judges": [], "scores": [1.0]}}


def test_random_neighbours_depend_on_round_and_client_only(bench):
    made = made_bench(bench)
    state, _ = rounds(made, FedRn(warmup_rounds=1), 1)
    how = {"count": 1, "weight": 0.6, "choice": "random"}

    first = [judges(made.round(r), state, [0, 1], **how) for r in range(12)]
    alone = [judges(made.round(r), state, [1], **how) for r in range(12)]

    assert [f[1]["judges"] for f in first] == [a[1]["judges"] for a in alone]
    assert len({id(f[0]["judges"][1]) for f in first}) == 2  # both others come


def test_messages_are_those_of_the_cost_table(bench):
    made = made_bench(bench)
    _, contexts = rounds(made, FedRn(warmup_rounds=1, neighbours=2), 1)
    model = 4 * (4 * 2 + 2)  # logistic on 2 x 2 pixels

    sent = contexts[-1].entry["bytes"]

    # Table 8: down (k + 1) M, up M, and C + 1 numbers.
    assert sent["down"] == {"model": 3 * model, "neighbour models": 3 * 2 * model}
    assert sent["up"] == {"model": 3 * model, "expertise": 3 * 4, "probe": 3 * 2 * 4}
    assert contexts[-1].entry["selection"]["recall"] is not None


def test_tuning_the_head_leaves_the_body_alone():
    rng = stream(0, "test.fedrn")
    images = rng.normal(size=(6, 1, 4, 4)).astype(np.float32)
    labels = np.array([0, 1, 0, 1, 1, 0])
    model = MODELS.get("mlp")()
    from raysim.models.params import initial_tree, layout, named_arrays

    tree = initial_tree(model, (4, 4, 1), 2, 0)
    train = TrainSettings(epochs=3, batch_size=2, lr=0.5)
    with open_session(model, [tree], images, labels, train, rng=rng, classes=2) as own:
        own.tune_head(0, among=np.arange(4))
        tuned = own.tree()

    shapes = layout(model, (4, 4, 1), 2)
    before, after = named_arrays(tree, shapes), named_arrays(tuned, shapes)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_a_session_descends_like_a_client_of_fedavg():
    rng = stream(0, "test.fedrn")
    images = rng.normal(size=(7, 1, 2, 2)).astype(np.float32)
    labels = rng.integers(0, 2, 7)
    tree = {"trainable": rng.normal(size=10).astype(np.float32), "buffers": np.zeros(0, "f4")}
    model = MODELS.get("logistic")()
    train = TrainSettings(epochs=2, batch_size=3, lr=0.5, momentum=0.5, proximal=0.1)

    with open_session(model, [tree], images, labels, train, rng=stream(3, "x"), classes=2) as own:
        own.descend()
        found, loss = own.tree(), own.loss

    expected, report = train_client(
        model, tree, images, labels, train, rng=stream(3, "x"), classes=2
    )
    np.testing.assert_array_equal(found["trainable"], expected["trainable"])
    assert loss == pytest.approx(report.loss)


def test_the_judged_train_on_small_losses_only(bench):
    # Nine samples the own model fits and three it does not: two Gaussians tell them apart.
    made = bench([[0] * 9 + [1] * 3], "model.name=logistic", "train.epochs=1", classes=2)
    method = FedRn(warmup_rounds=1, neighbours=0)
    stages = method.stages(made.config)[1:]
    state = State(groups={0: 0})
    for number in range(3):
        state = stages[0].step(made.round(number), state)
    context = made.round(9)

    stages[1].step(context, state)

    tree = made.federation.get(state.models["upload/0"])
    weights = tree["trainable"][:8].reshape(2, 4)
    logits = made.world.images(made.ids[0]).reshape(-1, 4) @ weights.T + tree["trainable"][8:]
    losses = sample_losses(logits, made.labels[0])
    selected = context.entry["selection"]["recall"]  # labels are right here: the share selected
    assert 0 < selected < 1
    assert selected == pytest.approx(np.mean(losses < losses.mean()), abs=0.35)


@pytest.mark.parametrize("wrong", [{"neighbours": -1}, {"expertise": 1.5}, {"warmup_rounds": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        FedRn(**wrong)


# ---- oracle ----------------------------------------------------------------------------------


def test_the_oracle_trains_on_right_labels_only(bench):
    made = made_bench(bench)
    wrong = {0: np.array([0, 2]), 1: np.array([1, 2, 3]), 2: np.array([], int)}
    context = made.round()
    for k, places in wrong.items():
        context.evaluator._true[k] = made.labels[k].copy()
        context.evaluator._true[k][places] ^= 1

    *_, stage = Oracle().stages(made.config)
    made.config = context.config = with_method(made.config, Oracle())
    state = stage.step(context, start(made))

    assert context.entry["selection"] == {"precision": 1.0, "recall": 1.0, "f_score": 1.0}
    assert state.models.keys() == {"group/0"}


def with_method(config, method):
    from dataclasses import replace

    return replace(config, method=method)

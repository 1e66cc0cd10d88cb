"""FedRN and the oracle: who judges, on what clients train, what is sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raysim.core.selection import clean_posterior
from raysim.methods.baselines import Oracle
from raysim.methods.fedrn import FedRn, ensemble, most_reliable, reliability
from raysim.methods.method import LocalTask
from raysim.models.sessions import open_session
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import MODELS
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.group_training import local_arguments

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
            contexts.append(made.round(number, stage=stage.name))
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
    found = FedRn(neighbours=1, expertise=1.0).judges(context, state, [0])

    # Expertise alone decides: 1 is the next best after 0 itself.
    assert found[0]["judges"] == [state.models["upload/0"], state.models["upload/1"]]
    assert found[0]["scores"] == pytest.approx([1.0, 0.7 / 0.8])
    assert context.entry["bytes"]["down"]["neighbour models"] == state.models["upload/1"].nbytes
    alike = FedRn(neighbours=1, expertise=0.0).judges(made.round(3), state, [0])
    assert alike[0]["judges"][1] == state.models["upload/2"]


def test_a_client_without_an_upload_is_judged_by_the_received_model(bench):
    made = made_bench(bench)

    found = FedRn().judges(made.round(), start(made), [1])

    assert found == {1: {"judges": [], "scores": [1.0]}}


def test_random_neighbours_depend_on_round_and_client_only(bench):
    made = made_bench(bench)
    state, _ = rounds(made, FedRn(warmup_rounds=1), 1)
    method = FedRn(neighbours=1, choice="random")

    first = [method.judges(made.round(r), state, [0, 1]) for r in range(12)]
    alone = [method.judges(made.round(r), state, [1]) for r in range(12)]

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
    with open_session(model, [tree], images, labels, train, rng=rng, classes=2) as session:
        session.tune_head(0, among=np.arange(4))
        tuned = session.tree()

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

    with open_session(
        model, [tree], images, labels, train, rng=stream(3, "x"), classes=2
    ) as session:
        session.descend()
        found, loss = session.tree(), session.loss

    expected, report = train_client(
        model, tree, images, labels, train, rng=stream(3, "x"), classes=2
    )
    np.testing.assert_array_equal(found["trainable"], expected["trainable"])
    assert loss == pytest.approx(report.loss)


# ---- the equations ------------------------------------------------------------------------------


def test_reliability_worked_by_hand():
    # Expertise 0.2, 0.6, 1.0 -> 0, 1/2, 1. Cosines with client 0: 1, 0, -1 -> 1, 1/2, 0.
    probes = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])

    found = reliability(np.array([0.2, 0.6, 1.0]), probes, 0, weight=0.6)

    assert found == pytest.approx([0.4, 0.6 * 0.5 + 0.4 * 0.5, 0.6])


def test_the_own_score_counts_full_similarity():
    # All probes alike: the others' similarity is the middle, the own one is 1.
    found = reliability(np.array([0.5, 0.5]), np.ones((2, 3)), 1, weight=0.4)

    assert found == pytest.approx([0.4 * 0.5 + 0.6 * 0.5, 0.4 * 0.5 + 0.6])


def test_reliability_is_the_slow_loop():
    rng = stream(0, "test.reliability")
    expertise, probes = rng.uniform(size=6), rng.normal(size=(6, 4))

    found = reliability(expertise, probes, 2, weight=0.3)

    cosine = [
        sum(a * b for a, b in zip(p, probes[2], strict=True))
        / (sum(a * a for a in p) ** 0.5 * sum(a * a for a in probes[2]) ** 0.5)
        for p in probes
    ]
    for n in range(6):
        skill = (expertise[n] - min(expertise)) / (max(expertise) - min(expertise))
        alike = (cosine[n] - min(cosine)) / (max(cosine) - min(cosine))
        assert found[n] == pytest.approx(0.3 * skill + 0.7 * alike)


def test_a_silent_probe_is_like_nobody():
    found = reliability(np.array([0.0, 1.0]), np.array([[1.0, 1.0], [0.0, 0.0]]), 0, weight=0.0)

    assert found == pytest.approx([1.0, 0.0])


def test_neighbours_are_the_highest_besides_oneself_and_ties_go_to_the_lower():
    assert most_reliable(np.array([0.9, 0.5, 0.7, 0.7]), 0, 2).tolist() == [2, 3]
    assert most_reliable(np.array([0.9, 0.5]), 1, 5).tolist() == [0]


def test_judges_count_by_their_scores():
    posteriors = np.array([[1.0, 0.0], [0.0, 1.0]])

    assert ensemble(posteriors, np.array([3.0, 1.0])) == pytest.approx([0.75, 0.25])
    assert ensemble(posteriors, np.zeros(2)) == pytest.approx([0.5, 0.5])


# ---- one judgement against lines 11 to 18 of the paper's Algorithm 1 --------------------------

LR, BATCH = 0.5, 7
SCORES = [0.5, 0.9, 0.3]
RECEIVED, OWN, *OTHERS = stream(1, "test.judges").normal(size=(4, 23)).astype(np.float32)
"""Perceptrons of 4 pixels, 3 hidden units and 2 classes."""


def as_tree(flat):
    return {"trainable": flat, "buffers": np.zeros(0, np.float32)}


def judged(bench, judges):
    """What a client with these judges replies and sends."""
    rng = stream(0, "test.judged")
    how = [f"train.lr={LR}", f"train.batch_size={BATCH}", "train.order=stored", "train.epochs=2"]
    labels = rng.integers(0, 2, 40)
    made = bench([labels], "model={name: mlp, hidden: 3}", *how, classes=2)
    made.world.pixels = rng.normal(size=(40, 1, 2, 2)).astype(np.float32)
    each = {"judges": [as_tree(flat) for flat in judges], "scores": SCORES[: max(len(judges), 1)]}
    shared = {**local_arguments(made.round(4)), "models": {0: as_tree(RECEIVED)}}
    task = LocalTask(FedRn(probe="logits"))
    found = made.federation.reduce(task, groups={0: 0}, each={0: each}, **shared)
    return made, found.replies[0], made.federation.get(found.groups[0].mean)


def slow_network(flat, images):
    """What enters the head for each image, a one for the bias included, and the head."""
    weight, bias = flat[:12].reshape(3, 4).astype(float), flat[12:15]
    features = [np.append(np.maximum(weight @ x.ravel() + bias, 0.0), 1.0) for x in images]
    return features, np.column_stack([flat[15:21].reshape(2, 3), flat[21:]]).astype(float)


def slow_softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def slow_posterior(flat, images, labels, among=()):
    """How surely each label is right by a model whose head took one epoch on ``among``."""
    features, head = slow_network(flat, images)
    for start in range(0, len(among), BATCH):
        rows, move = among[start : start + BATCH], 0.0
        for i in rows:
            error = slow_softmax(head @ features[i]) - np.eye(2)[labels[i]]
            move = move + np.outer(error, features[i]) / len(rows)
        head = head - LR * move
    pairs = zip(features, labels, strict=True)
    return clean_posterior(np.array([-np.log(slow_softmax(head @ f)[y]) for f, y in pairs]))


def slow_mask(posteriors, scores):
    total = sum(score * each for score, each in zip(scores, posteriors, strict=True))
    return (total / sum(scores) > 0.5).tolist()


@pytest.mark.parametrize("count", [1, 2])
def test_the_judges_select_as_the_sheet_writes_it(bench, count):
    made, reply, _ = judged(bench, [OWN, *OTHERS[:count]])
    data, scores = (made.world.pixels, made.labels[0]), SCORES[: count + 1]

    def others(among):
        return [slow_posterior(flat, *data, among) for flat in OTHERS[:count]]

    own, received = slow_posterior(OWN, *data), slow_posterior(RECEIVED, *data)
    sure, rest = np.flatnonzero(own > 0.5), np.flatnonzero(own <= 0.5)
    wrong = {
        "received": slow_mask([received, *others(np.flatnonzero(received > 0.5))], scores),
        "tuned on all": slow_mask([own, *others(np.arange(40))], scores),
        "tuned on the rest": slow_mask([own, *others(rest)], scores),
        "not tuned": slow_mask([own, *others(())], scores),
        "plain mean": slow_mask([own, *others(sure)], [1.0] * (count + 1)),
        "own alone": slow_mask([own], [1.0]),
    }

    expected = slow_mask([own, *others(sure)], scores)
    assert reply["selected"].tolist() == expected
    assert [name for name, mask in wrong.items() if mask == expected] == []


def test_the_received_model_judges_where_there_is_no_own(bench):
    made, reply, _ = judged(bench, [])

    expected = slow_mask([slow_posterior(RECEIVED, made.world.pixels, made.labels[0])], [1.0])
    assert reply["selected"].tolist() == expected


def test_the_received_model_trains_on_the_selected_samples(bench):
    made, reply, sent = judged(bench, [OWN, *OTHERS])
    rows = reply["selected"]

    data = as_tree(RECEIVED), made.world.pixels[rows], made.labels[0][rows], made.config.train
    expected, _ = train_client(made.config.model, *data, rng=stream(0, "unused"), classes=2)

    assert 0 < rows.sum() < 40
    np.testing.assert_array_equal(sent["trainable"], expected["trainable"])


def test_a_client_tells_its_accuracy_on_all_its_labels(bench):
    made, reply, sent = judged(bench, [OWN, *OTHERS])
    features, head = slow_network(sent["trainable"], made.world.pixels)

    found = [np.argmax(head @ f) for f in features]
    assert reply["expertise"] == np.mean(found == made.labels[0])


def test_clients_count_by_all_their_samples_whatever_the_server_says(bench):
    made = made_bench(bench)
    made.world.pixels = stream(0, "test.sizes").normal(size=(13, 1, 2, 2)).astype(np.float32)
    state = start(made)
    assert made.config.server.weights == "uniform"

    for number, stage in enumerate(FedRn(warmup_rounds=1).stages(made.config)[1:]):
        state = stage.step(made.round(number, stage=stage.name), state)
        flat = {name: made.federation.get(h)["trainable"] for name, h in state.models.items()}
        mean = (6 * flat["upload/0"] + 4 * flat["upload/1"] + 3 * flat["upload/2"]) / 13
        np.testing.assert_allclose(flat["group/0"], mean, atol=1e-6)  # float32


@pytest.mark.parametrize("wrong", [{"neighbours": -1}, {"expertise": 1.5}, {"warmup_rounds": 0}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        FedRn(**wrong)


# ---- oracle ----------------------------------------------------------------------------------


def test_the_oracle_trains_on_right_labels_only(bench):
    made = made_bench(bench)
    made.config = replace(made.config, method=Oracle())
    made.world.pixels = stream(0, "test.oracle").normal(size=(13, 1, 2, 2)).astype(np.float32)
    tree = as_tree(stream(1, "test.oracle").normal(size=10).astype(np.float32))
    right = {0: [1, 3, 4, 5], 1: [0], 2: [0, 1, 2]}
    context = made.round()
    for k, rows in right.items():
        context.evaluator._true[k] = made.labels[k] ^ 1
        context.evaluator._true[k][rows] = made.labels[k][rows]

    *_, stage = Oracle().stages(made.config)
    models = {"group/0": made.federation.put(tree)}
    state = stage.step(context, replace(start(made), models=models))

    total = 0.0
    for k, rows in right.items():
        data = made.world.pixels[made.ids[k][rows]], made.labels[k][rows], made.config.train
        rng = stream(made.config.seed, "train", 0, k)
        one, _ = train_client(made.config.model, tree, *data, rng=rng, classes=2)
        total = total + len(rows) * one["trainable"]
    assert context.entry["selection"] == {"precision": 1.0, "recall": 1.0, "f_score": 1.0}
    assert state.models.keys() == {"group/0"}
    found = made.federation.get(state.models["group/0"])["trainable"]
    np.testing.assert_allclose(found, total / 8, atol=1e-6)  # float32

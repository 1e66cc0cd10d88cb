"""Accuracy per client on its own task, computed once per distinct model and task."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.protocols import State
from raysim.settings import SettingError
from raysim.steps.evaluation import EvaluateSettings, evaluate_clients, is_due, judge_labels
from raysim.steps.group_training import evaluated

C = 3
TEST_LABELS = [0] * 6 + [1] * 3 + [2] * 1


def clients(bench, count: int, *overrides: str):
    made = bench([[0]] * count, *overrides, classes=C)
    made.world.test_labels = np.array(TEST_LABELS)
    made.world.test_images = np.ones((len(TEST_LABELS), 1, 2, 2), np.float32)
    return made


def always(made, label: int):
    """A stored logistic model that answers every image with one class."""
    biases = np.eye(C, dtype=np.float32)[label] * 10
    flat = np.concatenate([np.zeros(4 * C, np.float32), biases])
    return made.federation.put({"trainable": flat, "buffers": np.zeros(0, np.float32)})


def state_of(made, groups: dict[int, int], answers: dict[int, int]) -> State:
    models = {f"group/{g}": always(made, label) for g, label in answers.items()}
    return State(groups=groups, models=models)


@pytest.fixture(params=["autograd", "closed_form"])
def kernel(request) -> str:
    return f"train.kernel={request.param}"


def test_accuracy_is_that_of_the_clients_own_model_on_its_own_task(bench, kernel):
    made = clients(bench, 3, kernel)
    made.tasks = {0: (0, 1), 1: (0, 1), 2: (1, 2)}
    context = made.round(last=True)

    evaluate_clients(context, state_of(made, {0: 0, 1: 1, 2: 1}, {0: 0, 1: 1}))

    # Six zeros and three ones; client 2 sees three ones and a two.
    assert context.entry["per_client"] == pytest.approx([6 / 9, 3 / 9, 3 / 4])
    mean = (6 / 9 + 3 / 9 + 3 / 4) / 3
    assert context.entry["accuracy"]["mean"] == pytest.approx(mean)
    spread = np.mean([(6 / 9 - mean) ** 2, (3 / 9 - mean) ** 2, (3 / 4 - mean) ** 2]) ** 0.5
    assert context.entry["accuracy"]["std"] == pytest.approx(spread)


def test_classes_outside_the_task_can_win_the_argmax(bench, kernel):
    made = clients(bench, 1, kernel)
    made.tasks = {0: (0, 1)}
    context = made.round(last=True)

    evaluate_clients(context, state_of(made, {0: 0}, {0: 2}))

    assert context.entry["per_client"] == [0.0]


def test_scores_are_also_averaged_per_task(bench, kernel):
    made = clients(bench, 3, kernel)
    made.tasks = {0: (0,), 1: (1,), 2: (0,)}
    context = made.round()

    evaluate_clients(context, state_of(made, {0: 0, 1: 0, 2: 1}, {0: 0, 1: 1}))

    # Task (0,): client 0's model is right, client 2's is wrong; task (1,): client 1's is wrong.
    assert context.entry["by_task"]["accuracy"] == [0.5, 0.0]
    assert len(context.entry["by_task"]["loss"]) == 2


def test_the_loss_is_averaged_over_clients(bench, kernel):
    made = clients(bench, 3, kernel)
    made.tasks = {0: (0,), 1: (0,), 2: (1,)}
    context = made.round()

    evaluate_clients(context, state_of(made, {0: 0, 1: 0, 2: 0}, {0: 0}))

    # Logits (10, 0, 0): -log softmax is log(1 + 2 e^-10) for class 0 and 10 more for class 1.
    right = np.log1p(2 * np.exp(-10.0))
    assert context.entry["test_loss"] == pytest.approx((right + right + right + 10) / 3, rel=1e-6)


def test_each_pair_of_model_and_task_is_evaluated_once(bench, kernel):
    made = clients(bench, 6, kernel)
    made.tasks = {0: (0,), 1: (0,), 2: (1,), 3: (1,), 4: (0,), 5: (0,)}
    groups = {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 0}

    evaluate_clients(made.round(), state_of(made, groups, {0: 0, 1: 1}))

    # Pairs: (0, task 0), (0, task 1), (1, task 1), (1, task 0): four for six clients.
    assert sorted(made.world.opened) == [(0,), (0,), (1,), (1,)]


def test_one_model_and_one_task_are_evaluated_once_for_everyone(bench):
    made = clients(bench, 9)
    context = made.round(last=True)

    evaluate_clients(context, state_of(made, dict.fromkeys(range(9), 0), {0: 0}))

    assert len(made.world.opened) == 1
    assert context.entry["per_client"] == [0.6] * 9


def test_models_nobody_uses_are_left_alone(bench):
    made = clients(bench, 2)
    state = state_of(made, {0: 4, 1: 4}, {4: 0, 5: 1})

    evaluate_clients(made.round(), state)

    assert len(made.world.opened) == 1


def test_single_accuracies_are_kept_for_the_last_round_only(bench):
    made = clients(bench, 2)
    state = state_of(made, {0: 0, 1: 0}, {0: 0})
    middle, last = made.round(), made.round(last=True)

    evaluate_clients(middle, state)
    evaluate_clients(last, state)

    assert "per_client" not in middle.entry
    assert "per_client" in last.entry
    assert middle.entry["accuracy"] == last.entry["accuracy"]


def test_evaluation_sends_nothing_and_changes_no_memory(bench, tmp_path):
    made = clients(bench, 2)
    context = made.round()

    evaluate_clients(context, state_of(made, {0: 0, 1: 0}, {0: 0}))

    assert "bytes" not in context.entry
    assert made.federation.commit(str(tmp_path), {})["memory"] == {}


@pytest.mark.parametrize(("every", "due"), [(1, [0, 1, 2, 3, 4, 5, 6]), (3, [2, 5, 6]), (100, [6])])
def test_rounds_are_due_by_cadence_and_the_last_always(bench, every, due):
    made = clients(bench, 1, f"evaluate.every={every}")

    assert [r for r in range(7) if is_due(made.round(r, last=r == 6))] == due


def test_never_evaluating_is_refused():
    with pytest.raises(SettingError, match="every must be at least 1"):
        EvaluateSettings(every=0)


def test_top_5_is_recorded_when_asked_for(bench, kernel):
    # Six classes; the model's logits fall from class 0 to class 5, which is the only one outside
    # the five largest: nine of ten images.
    made = bench([[0]], kernel, "evaluate.top5=true", classes=6)
    made.world.test_labels = np.array([0, 1, 2, 3, 4, 4, 4, 1, 1, 5])
    made.world.test_images = np.ones((10, 1, 2, 2), np.float32)
    made.tasks = {0: tuple(range(6))}
    flat = np.concatenate([np.zeros(24), 6 - np.arange(6)]).astype(np.float32)
    model = made.federation.put({"trainable": flat, "buffers": np.zeros(0, np.float32)})
    context = made.round()

    evaluate_clients(context, State(groups={0: 0}, models={"group/0": model}))

    assert context.entry["top5"] == {"mean": pytest.approx(0.9), "std": 0.0}
    assert context.entry["accuracy"]["mean"] == pytest.approx(0.1)


def test_top_5_is_not_recorded_otherwise(bench, kernel):
    made = clients(bench, 1, kernel)
    made.tasks = {0: (0, 1)}
    context = made.round()

    evaluate_clients(context, state_of(made, {0: 0}, {0: 0}))

    assert "top5" not in context.entry


def test_final_models_judge_the_given_labels(bench, kernel):
    # Model 0 answers class 0: logits (10, 0, 0), mean 3.3, so only label 0 is taken for right.
    # All given labels are right here: client 0 keeps one of two, client 1 one of one.
    made = bench([[0, 1], [2]], kernel, classes=C)
    context = made.round(last=True)

    judge_labels(context, state_of(made, {0: 0, 1: 1}, {0: 0, 1: 2}))

    assert made.artifacts["client_f_score_judged"] == pytest.approx([2 / 3, 1.0])
    assert context.entry["judged"]["recall"] == pytest.approx(0.75)


def test_an_impossible_class_counts_little_in_the_mean_of_the_losses(bench):
    # Logits (40, 15, -10, ...): label 1 is above their mean, but not with the floor of CORES2.
    made = bench([[1, 0]], classes=10)
    flat = np.array([*[0.0] * 40, 40.0, 15.0, *[-10.0] * 8], np.float32)
    model = made.federation.put({"trainable": flat, "buffers": np.zeros(0, np.float32)})
    context = made.round(last=True)

    judge_labels(context, State(groups={0: 0}, models={"group/0": model}))

    assert context.entry["judged"]["recall"] == pytest.approx(0.5)


def test_labels_are_judged_only_when_asked_and_at_the_end(bench):
    for asked, last in ((False, True), (True, False), (True, True)):
        made = clients(bench, 2, f"evaluate.f_score={str(asked).lower()}")
        context = made.round(last=last)
        evaluated(context, state_of(made, {0: 0, 1: 0}, {0: 0}))
        assert ("judged" in context.entry) == (asked and last)


def test_the_result_has_the_newest_scores_and_clients_their_own(run_tiny):
    asked = ("evaluate.top5=true", "evaluate.f_score=true")
    result = run_tiny("co_teaching", *asked, base=("train.rounds=3",))
    last = result.records[-1]

    names = ("top5", "selection", "selection_of_wrong", "judged", "judged_of_wrong")
    for name in names:
        assert result.summary[name] == last[name]
    assert result.summary["noisy_clients"] is None  # it names no clients
    clients = result.clients_frame()
    assert clients["f_score"].mean() == pytest.approx(last["selection"]["f_score"])
    assert clients["f_score_judged"].mean() == pytest.approx(last["judged"]["f_score"])
    assert not np.allclose(clients["f_score"], clients["f_score_judged"])

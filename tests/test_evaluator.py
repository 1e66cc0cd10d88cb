"""The evaluator's scores, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.experiment.evaluator import Evaluator

TRUE = {0: np.array([0, 0, 1]), 1: np.array([2, 2]), 2: np.array([3, 3, 3])}
GIVEN = {0: np.array([0, 1, 1]), 1: np.array([2, 0]), 2: np.array([3, 3, 3])}


def evaluator(task_of=(0, 0, 1)) -> Evaluator:
    return Evaluator(TRUE, GIVEN, task_of)


def grouping(tasks, groups) -> dict[str, float]:
    clients = range(len(tasks))
    labels = {k: np.array([0]) for k in clients}
    return Evaluator(labels, labels, tasks).groups(dict(zip(clients, groups, strict=True)))


def test_noise_counts_samples_not_clients():
    # One of three, one of two, none of three: 2 of 8, not (1/3 + 1/2 + 0) / 3.
    assert evaluator().noise() == pytest.approx(2 / 8)


def test_clients_taken_for_noisy_are_scored_against_those_with_wrong_labels():
    # Clients 0 and 1 have wrong labels, 2 has none.
    half = {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert evaluator().noisy_clients([1, 2]) == half
    assert evaluator().noisy_clients([]) == {"precision": None, "recall": 0.0, "f1": 0.0}
    clean = Evaluator(TRUE, TRUE, (0, 0, 1))
    assert clean.noisy_clients([]) == {"precision": None, "recall": None, "f1": None}


def test_soft_scores_of_clients_add_an_auroc():
    # Clients 0 and 1 are noisy: of the pairs (0, 2) and (1, 2) both, one or none are in order.
    for scores, expected in (((3, 2, 1), 1.0), ((3, 1, 2), 0.5), ((1, 1, 3), 0.0)):
        by_client = dict(enumerate(scores))
        assert evaluator().noisy_clients([], by_client)["auroc"] == expected
        assert Evaluator(TRUE, TRUE, (0, 0, 1)).noisy_clients([], by_client)["auroc"] is None


def test_true_groups_score_one_under_any_names():
    assert grouping((0, 0, 1, 1), (5, 5, 2, 2)) == {"ari": 1.0, "nmi": 1.0, "purity": 1.0}


def test_one_group_for_all_is_as_pure_as_its_largest_task():
    # Purity: (1 / K) sum over groups of the largest overlap with a task = 3 / 5.
    scores = grouping((0, 0, 0, 1, 1), (0, 0, 0, 0, 0))

    assert scores["purity"] == pytest.approx(3 / 5)
    assert scores["ari"] == pytest.approx(0.0)


def test_a_group_per_client_is_pure():
    scores = grouping((0, 0, 1, 1), (0, 1, 2, 3))

    assert scores["purity"] == 1.0
    assert scores["ari"] == pytest.approx(0.0)


def test_purity_and_ari_of_a_mixed_grouping():
    # Groups {0, 1, 3} and {2, 4, 5} of tasks (0, 0, 0, 1, 1, 1): overlaps 2 and 2, so 4 / 6.
    # Pairs together in both: 1 + 1 = 2; in each alone: 6; expected 6 * 6 / 15 = 2.4.
    scores = grouping((0, 0, 0, 1, 1, 1), (0, 0, 1, 0, 1, 1))

    assert scores["purity"] == pytest.approx(4 / 6)
    assert scores["ari"] == pytest.approx((2 - 2.4) / (6 - 2.4))


def test_some_clients_alone_are_scored_on_their_own_tasks():
    labels = {k: np.array([0]) for k in range(4)}

    scores = Evaluator(labels, labels, (0, 1, 0, 1)).groups({3: 1, 1: 1, 2: 0})

    assert scores == {"ari": 1.0, "nmi": 1.0, "purity": 1.0}


def test_corrected_labels_are_scored_over_all_samples():
    corrected = {
        0: np.array([0, 0, 2]),  # repaired one, broke one
        1: np.array([2, 1]),  # changed a wrong one to another wrong one
        2: GIVEN[2],
    }

    report = evaluator().labels(corrected)

    # True 0 0 1 2 2 3 3 3, given 0 1 1 2 0 3 3 3, new 0 0 2 2 1 3 3 3.
    assert report["noise_before"] == pytest.approx(2 / 8)
    assert report["noise_after"] == pytest.approx(2 / 8)
    assert report["precision"] == pytest.approx(1 / 3)
    assert report["recall"] == pytest.approx(1 / 2)
    assert report["harm_rate"] == pytest.approx(1 / 6)


def test_clients_not_named_keep_their_given_labels():
    report = evaluator().labels({0: TRUE[0]})

    assert report["noise_after"] == pytest.approx(1 / 8)


def test_a_correction_that_changes_nothing_has_no_precision():
    report = evaluator().labels(GIVEN)

    assert report["precision"] is None
    assert report["noise_after"] == report["noise_before"]


def test_the_true_tasks_are_plain_numbers():
    tasks = evaluator(np.array([1, 1, 0])).tasks()

    assert tasks == {0: 1, 1: 1, 2: 0}
    assert all(type(task) is int for task in tasks.values())


def test_the_evaluator_scores_but_does_not_keep_what_it_is_given():
    given = dict(GIVEN)
    scores = Evaluator(TRUE, given, (0, 0, 1))
    given.clear()

    assert scores.noise() == pytest.approx(2 / 8)


def test_selected_samples_are_scored_per_client_then_averaged():
    # Client 0: right labels at 0 and 2; selected 0, 1 -> LP 1/2, LR 1/2, F 1/2.
    # Client 1: right label at 0; nothing selected -> LP undefined, LR 0, no F-score.
    # Client 2: all three right and selected -> 1, 1, 1.
    masks = {0: [True, True, False], 1: [False, False], 2: [True, True, True]}

    means, scores = evaluator().selection({k: np.array(mask) for k, mask in masks.items()})

    assert means == {"precision": 0.75, "recall": 0.5, "f_score": 0.75}
    np.testing.assert_array_equal(scores, [0.5, np.nan, 1.0])


def test_what_is_judged_among_other_labels_is_scored_by_those():
    # Client 0 as it was repaired: right at 0 and 1. Selected 0, 1 -> all scores 1; 2 is wrong.
    labels = {**TRUE, 0: np.where([True, True, False], TRUE[0], TRUE[0] + 1)}
    mask = {0: np.array([True, True, False])}
    perfect = {"precision": 1.0, "recall": 1.0, "f_score": 1.0}

    assert evaluator().selection(mask, labels)[0] == perfect
    assert evaluator().detection(mask, labels) == {**perfect, "empty": 0}
    assert evaluator().selection(mask)[0] != perfect
    assert evaluator().clean(labels)[0].tolist() == [True, True, False]
    # Clients 1 and 2 hold no wrong label any more.
    found = evaluator().noisy_clients([0], None, {0: 1.0, 1: 0.0, 2: 0.0}, labels=labels)
    assert found == {
        "precision": 1.0, "recall": 1.0, "f1": 1.0, "correlation": pytest.approx(1.0),
    }  # fmt: skip
    assert evaluator().noisy_clients([0])["recall"] == 0.5


def test_labels_one_after_another_are_cut_by_client():
    flat = np.concatenate([GIVEN[k] for k in sorted(GIVEN)])

    cut = evaluator().by_client(flat)

    assert cut.keys() == GIVEN.keys()
    assert all(np.array_equal(cut[k], GIVEN[k]) for k in GIVEN)


def test_clients_without_a_selection_have_no_score():
    means, scores = evaluator().selection({2: np.array([True, False, False])})

    assert means == {
        "precision": 1.0,
        "recall": pytest.approx(1 / 3),
        "f_score": pytest.approx(0.5),
    }
    assert np.isnan(scores[:2]).all()


def test_samples_that_are_not_taken_are_scored_as_the_wrong_ones():
    # Client 0: sample 1 is wrong; not taken: 2 -> precision 0, recall 0, F 0.
    # Client 1: sample 1 is wrong; nothing taken -> 1/2, 1, F 2/3. Client 2: none is wrong.
    masks = {0: [True, True, False], 1: [False, False], 2: [True, True, True]}

    found = evaluator().detection({k: np.array(mask) for k, mask in masks.items()})

    assert found == {
        "precision": pytest.approx(0.25),
        "recall": pytest.approx(0.5),
        "f_score": pytest.approx(1 / 3),
        "empty": 1,
    }


def test_estimated_noise_is_correlated_with_the_true_one():
    # True shares 1/3, 1/2, 0.
    told = evaluator().noisy_clients([0], None, {0: 2 / 3, 1: 1.0, 2: 0.0})
    flat = evaluator().noisy_clients([0], None, dict.fromkeys(range(3), 0.1))
    turned = evaluator().noisy_clients([0], None, {0: -1 / 3, 1: -1 / 2, 2: 0.0})

    assert told["correlation"] == pytest.approx(1.0)
    assert turned["correlation"] == pytest.approx(-1.0)
    assert flat["correlation"] is None


def test_the_phases_of_a_correction_are_scored_apart():
    true = {0: np.array([0, 0, 0, 1, 2, 2, 3])}
    before = {0: np.array([1, 1, 1, 1, 2, 3, 3])}
    after = {0: np.array([0, 0, 0, 0, 1, 2, 3])}  # class 1 renamed to 0; 2 and 3 one by one
    decided = {0: {1: 0, 2: None, 3: None}}

    found = Evaluator(true, before, [0]).phases(before, after, decided)
    wrong = Evaluator(true, before, [0]).phases(before, after, {0: {1: 3, 2: None, 3: None}})

    assert found == {
        "phase1_right": 1,
        "phase2_samples": 3,
        "phase2_wrong_before": 1,
        "phase2_wrong_after": 1,
        "phase2_spoiled": 1,
    }
    assert wrong["phase1_right"] == 0


def test_a_selection_of_wrong_labels_only_scores_zero():
    _, scores = evaluator().selection({0: np.array([False, True, False])})

    assert scores[0] == 0.0


def test_labels_that_a_correction_keeps_are_its_selection():
    kept = evaluator().kept({0: np.array([0, 0, 1]), 1: np.array([2, 2])})

    assert {k: mask.tolist() for k, mask in kept.items()} == {
        0: [True, False, True],
        1: [True, False],
    }


def test_label_arrays_count_per_client_and_per_class():
    given = evaluator().arrays("given", 4)

    assert given["labels_given"].tolist() == [[1, 2, 0, 0], [1, 0, 1, 0], [0, 0, 0, 3]]
    assert given["confusion_given"].tolist() == [
        [1, 1, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 3],
    ]
    assert given["client_noise_given"].tolist() == [pytest.approx(1 / 3), 0.5, 0.0]
    assert evaluator().true_counts(4).tolist() == [[2, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 3]]


def test_label_arrays_of_a_correction_leave_other_clients_as_given():
    found = evaluator().arrays("corrected", 4, {0: TRUE[0]})

    assert found["client_noise_corrected"].tolist() == [0.0, 0.5, 0.0]
    assert found["labels_corrected"].tolist() == [[2, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 3]]

"""Partitions: cases worked by hand, the papers' numbers, and section 12 over every setting."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.data.datasets.classes import CIFAR10_TASKS
from raysim.data.partition import (
    PARTITIONS,
    Split,
    TaskPartition,
    check_split,
    classes_in_order,
    clients_per_task,
    floor_share,
)
from raysim.errors import DataError
from raysim.seeding import stream

CIFAR_LABELS = stream(0, "labels").permutation(np.repeat(np.arange(10), 5000))
FB_NLL = {"split": "iid", "impurity_rate": 0.08, "impurity": "pool"}
RCC_PFL = {
    "split": "dirichlet",
    "alpha": 2.0,
    "impurity_rate": 0.05,
    "impurity": "foreign",
    "min_client_size": 100,
}


def draw(
    labels=CIFAR_LABELS, *, per_class=0, seed=0, table=CIFAR10_TASKS.get, classes=10, **kwargs
):
    return TaskPartition(**kwargs).make_split(
        labels,
        classes=classes,
        task_table=table,
        per_class=per_class,
        rng=stream(seed, "partition"),
    )


def foreign_counts(split, labels=CIFAR_LABELS):
    """Samples of each client whose class is not in its task, by a plain loop."""
    return np.array(
        [
            sum(int(labels[i]) not in split.tasks[split.task_of[k]] for i in ids)
            for k, ids in enumerate(split.clients)
        ]
    )


def test_registry_names_every_kind():
    assert {"file", "tasks", "iid", "bernoulli_dirichlet", "shards"} <= set(PARTITIONS.names())


@pytest.mark.parametrize(
    ("clients", "groups", "expected"),
    [
        (20, 2, [10, 10]),
        (20, 3, [7, 7, 6]),
        (20, 5, [4] * 5),
        (25, 2, [13, 12]),
        (25, 3, [9, 8, 8]),
        (25, 5, [5] * 5),
    ],
)
def test_clients_per_task_are_the_sheets(clients, groups, expected):
    assert clients_per_task(clients, groups) == expected


def test_clients_of_a_task_have_consecutive_numbers():
    split = draw(clients=7, groups=3)

    assert split.task_of.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert split.task_of.dtype == np.int64


def test_floor_share_takes_the_decimal_as_written():
    assert [floor_share(0.29, 100), floor_share(0.25, 7), floor_share(0.0, 9)] == [29, 1, 0]


def test_without_a_table_classes_are_cut_in_order():
    assert classes_in_order(10, 4) == ((0, 1, 2), (3, 4, 5), (6, 7), (8, 9))
    assert draw(clients=4, groups=4).tasks == classes_in_order(10, 4)


def test_tasks_of_eight_samples_worked_by_hand():
    # Labels 0 0 1 1 2 2 3 3; one clean sample per class leaves one of each; tasks {0,1} and {2,3}
    # of two samples, two clients each: every client holds exactly one sample, of its own task.
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])

    split = draw(
        labels,
        classes=4,
        table=lambda groups: None,
        per_class=1,
        clients=4,
        groups=2,
        impurity_rate=0.0,
    )

    assert labels[split.server_ids].tolist() == [0, 1, 2, 3]
    assert [len(ids) for ids in split.clients] == [1, 1, 1, 1]
    assert sorted(labels[np.concatenate(split.clients[:2])].tolist()) == [0, 1]
    assert sorted(labels[np.concatenate(split.clients[2:])].tolist()) == [2, 3]


def test_foreign_impurity_of_two_unequal_tasks_worked_by_hand():
    # N = (60, 100), rate 0.5. P_0 = (100 - P_1) / 2 and P_1 = (60 - P_0) / 2 give P_0 = 140/3
    # and P_1 = 20/3, so 47 and 7: own 13 and 93. The one client of task 0 gets the 7 samples
    # of task 1 (7 = 0.54 * 13), the one of task 1 gets the 47 of task 0 (47 = 0.505 * 93).
    labels = np.repeat([0, 1], [60, 100])

    split = draw(
        labels,
        classes=2,
        table=lambda groups: None,
        clients=2,
        groups=2,
        impurity_rate=0.5,
        impurity="foreign",
    )

    assert [np.bincount(labels[ids]).tolist() for ids in split.clients] == [[13, 7], [47, 93]]


def test_fbnll_sizes_on_cifar10_two_tasks():
    # Section 3: 19 200 and 28 800 samples after the server's; 92 % over ten clients each, and the
    # pool of 3 840 over twenty. 17 664 / 10 and 26 496 / 10 leave remainders of 4 and 6.
    split = draw(clients=20, groups=2, per_class=200, **FB_NLL)
    sizes = [len(ids) for ids in split.clients]

    assert len(split.server_ids) == 2000
    assert sizes[:10] == [1767 + 192] * 4 + [1766 + 192] * 6
    assert sizes[10:] == [2650 + 192] * 6 + [2649 + 192] * 4


@pytest.mark.parametrize(
    ("groups", "percent"), [(2, [5.9, 2.7]), (5, [6.4] * 5)], ids=["M=2", "M=5"]
)
def test_fbnll_foreign_share_is_the_sheets(groups, percent):
    split = draw(clients=20, groups=groups, per_class=200, **FB_NLL)
    shares = 100 * foreign_counts(split) / [len(ids) for ids in split.clients]

    # The mean of at least 4 clients with 192 pool samples each; 0.3 points is about 3 sigma.
    for task, expected in enumerate(percent):
        assert shares[split.task_of == task].mean() == pytest.approx(expected, abs=0.3)


@pytest.mark.parametrize(
    ("groups", "percent"), [(2, [23.5, 16.2]), (3, [31.2, 31.2, 24.1]), (5, [46.8] * 5)]
)
def test_fbnll_one_class_as_share_of_a_client_is_erratum_14(groups, percent):
    split = draw(clients=20, groups=groups, per_class=200, **FB_NLL)

    for task, expected in enumerate(percent):
        rows = [split.clients[k] for k in np.flatnonzero(split.task_of == task)]
        inside = np.isin(CIFAR_LABELS[np.concatenate(rows)], split.tasks[task])
        share = (
            100 * inside.mean() / len(split.tasks[task])
        )  # classes are alike: mean over the task
        assert share == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("groups", [2, 3, 5])
@pytest.mark.parametrize("split_kind", ["dirichlet", "dirichlet_per_class"])
def test_rccpfl_clients_get_five_percent_of_their_own_size_from_other_tasks(groups, split_kind):
    split = draw(clients=25, groups=groups, **{**RCC_PFL, "split": split_kind})
    foreign = foreign_counts(split)
    own = np.array([len(ids) for ids in split.clients]) - foreign

    assert own.min() >= 100
    # Pools are whole numbers, cut twice: one sample per cut, and M shared by the clients of a task.
    assert np.abs(foreign - 0.05 * own).max() <= 2 + groups / 5
    assert own.std() > 200  # sizes are far from even


def test_rccpfl_foreign_samples_are_uniform_over_the_other_tasks():
    split = draw(clients=25, groups=3, **RCC_PFL)
    first = CIFAR_LABELS[np.concatenate(split.clients[:9])]
    counts = np.bincount(first, minlength=10)

    # Task 0 is {0, 1, 8}: the other seven classes have equal numbers, about 5 % of 14 286 / 7.
    others = counts[[2, 3, 4, 5, 6, 7, 9]]
    assert np.abs(others - others.mean()).max() < 3 * np.sqrt(others.mean())


def test_labels_in_file_order_are_shuffled_into_clients_and_their_impurity():
    # MNIST-like order, 500 per class; without shuffling the first client would hold one class only.
    labels = np.repeat(np.arange(10), 500)
    split = draw(labels, clients=6, groups=3, impurity_rate=0.4, impurity="foreign")

    for ids, task in zip(split.clients, split.task_of, strict=True):
        counts = np.bincount(labels[ids], minlength=10)
        own, others = counts[list(split.tasks[task])], np.delete(counts, split.tasks[task])
        assert np.abs(own - own.mean()).max() < 4 * np.sqrt(own.mean())
        assert np.abs(others - others.mean()).max() < 4 * np.sqrt(others.mean())


def test_size_only_dirichlet_keeps_the_class_mix_and_per_class_skews_it():
    def skew(kind):
        split = draw(clients=25, groups=2, **{**RCC_PFL, "split": kind})
        mixes = [
            np.bincount(CIFAR_LABELS[ids], minlength=10)[[0, 1, 8, 9]] for ids in split.clients[:13]
        ]
        return max(float(np.abs(mix / mix.sum() - 0.25).max()) for mix in mixes)

    assert skew("dirichlet") < 0.1 < skew("dirichlet_per_class")


def test_pool_impurity_may_give_a_client_samples_of_its_own_task():
    labels = np.zeros(100, dtype=np.int64)

    split = draw(
        labels, classes=1, clients=2, groups=1, impurity_rate=0.5, table=lambda groups: None
    )

    assert [len(ids) for ids in split.clients] == [50, 50]


@pytest.mark.parametrize("impurity", ["pool", "foreign"])
def test_impurity_rate_zero_leaves_clients_pure(impurity):
    split = draw(clients=5, groups=2, impurity_rate=0.0, impurity=impurity)

    assert foreign_counts(split).tolist() == [0] * 5


SETTINGS = [
    (split, impurity, clients, groups)
    for split in ("iid", "dirichlet", "dirichlet_per_class")
    for impurity in ("pool", "foreign")
    for clients, groups in ((3, 3), (7, 2), (13, 5), (11, 4))
]


@pytest.mark.parametrize(("split_kind", "impurity", "clients", "groups"), SETTINGS)
def test_every_setting_passes_section_12(split_kind, impurity, clients, groups):
    labels = stream(1, "labels").integers(10, size=3001)
    for seed, per_class in ((0, 0), (1, 20), (2, 3)):
        kwargs = {
            "split": split_kind,
            "impurity": impurity,
            "clients": clients,
            "groups": groups,
            "seed": seed,
            "per_class": per_class,
        }
        split, again = draw(labels, **kwargs), draw(labels, **kwargs)

        check_split(split, labels, claimed=np.arange(3001))
        assert len(split.clients) == clients
        assert np.bincount(labels[split.server_ids], minlength=10).tolist() == [per_class] * 10
        for ids, same in zip(split.clients, again.clients, strict=True):
            assert ids.dtype == np.int64
            assert np.all(np.diff(ids) > 0)
            assert ids.tobytes() == same.tobytes()
        assert split.server_ids.tobytes() == again.server_ids.tobytes()


def test_another_seed_gives_another_split():
    assert not np.array_equal(draw(seed=0).clients[0], draw(seed=1).clients[0])


GOOD = {
    "clients": (np.array([0, 1]), np.array([2])),
    "tasks": ((0,), (1,)),
    "task_of": np.array([0, 1]),
    "server_ids": np.array([3]),
}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"clients": (np.array([0, 1]), np.array([1]))}, "1 samples are held twice, first [1]"),
        ({"server_ids": np.array([2])}, "1 samples are held twice, first [2]"),
        ({"clients": (np.array([0, 1]), np.array([4]))}, "sample [4] is outside the 4 training"),
        ({"clients": (np.array([0, 1]), np.array([], int))}, "clients [1] hold no sample"),
        ({"server_ids": np.array([], int)}, "1 samples are lost or not claimed, first [3]"),
        ({"task_of": np.array([0, 2])}, "a client has a task outside 0..1"),
        ({"task_of": np.array([0])}, "task_of and clients differ in length"),
        ({"tasks": ((0, 1), (1,))}, "tasks share a class: ((0, 1), (1,))"),
    ],
)
def test_check_split_finds(change, found):
    labels = np.array([0, 0, 1, 1])
    check_split(Split(**GOOD), labels, claimed=np.arange(4))

    with pytest.raises(DataError) as error:
        check_split(Split(**{**GOOD, **change}), labels, claimed=np.arange(4))

    assert found in str(error.value)

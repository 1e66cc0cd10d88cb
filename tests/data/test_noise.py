"""Label noise: cases worked by hand and the papers' illustrations."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from raysim.data.noise import ClassDependent, ClassIndependent, NoNoise, Uniform
from raysim.data.partition import Split
from raysim.errors import ConfigError
from raysim.seeding import stream

VEHICLES = ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7))  # CIFAR-10, M = 2


def one_client(labels, tasks):
    """A split whose only client has all samples and the first task."""
    ids = np.arange(len(labels))
    return Split(
        clients=(ids,), tasks=tasks, task_of=np.array([0]), server_ids=np.empty(0, np.int64)
    )


def corrupt(noise, labels, tasks, *, seed=0, classes=10):
    split = one_client(labels, tasks)
    return noise.corrupt(labels, split, classes=classes, rngs=lambda k: stream(seed, "noise", k))


def first_draw(noise, labels, tasks, *, target, source=None):
    """The first seed's draw whose target (and source class) are the wanted ones."""
    for seed in count():
        noisy = corrupt(noise, labels, tasks, seed=seed)
        sources = set(labels[noisy.given[0] != labels].tolist())
        if noisy.target[0] == target and source in (None, *sources):
            return noisy


def test_no_noise_gives_the_true_labels():
    labels = np.array([3, 1, 2], dtype=np.uint8)

    noisy = corrupt(NoNoise(), labels, ((1, 2, 3),))

    assert noisy.given[0].tolist() == [3, 1, 2]
    assert noisy.given[0].dtype == np.int64
    assert [*noisy.rate, *noisy.realised, *noisy.is_noisy, *noisy.target] == [0.0, 0.0, False, -1]


def test_class_independent_flips_a_quarter_to_the_only_foreign_class():
    # Seven samples: floor(0.25 * 7) = 1 flip; class 2 is the only one outside the task.
    labels = np.array([0, 0, 0, 1, 1, 1, 1])

    noisy = corrupt(ClassIndependent(), labels, ((0, 1), (2,)))

    assert noisy.given[0].tolist().count(2) == 1
    assert noisy.realised.tolist() == [1 / 7]
    assert (noisy.rate[0], noisy.target[0], noisy.is_noisy[0]) == (0.25, 2, True)


def test_class_independent_flip_of_a_foreign_sample_may_change_nothing():
    # Half of the client's samples are impurity of class 2, the only possible target, so some of the
    # 60 draws are without effect: the realised noise is below the rate.
    labels = np.repeat([0, 2], [60, 60])

    noisy = corrupt(ClassIndependent(rate=0.5), labels, ((0, 1), (2,)))

    assert noisy.rate[0] == 0.5
    # 60 draws of 120 without replacement hit 30 of class 0 on average, sigma 2.7.
    assert 0.25 - 0.07 < noisy.realised[0] < 0.25 + 0.07


def test_class_dependent_wipes_out_one_class_and_bites_the_next():
    # Task classes 0, 1, 2 with 4 samples each, budget floor(0.5 * 12) = 6 = 4 + 2.
    labels = np.repeat([0, 1, 2], 4)

    for seed in range(20):
        noisy = corrupt(ClassDependent(rate=0.5), labels, ((0, 1, 2), (3, 4)), seed=seed)
        left = np.bincount(noisy.given[0], minlength=5)

        assert sorted(left[:3].tolist()) == [0, 2, 4]
        assert sorted(left[3:].tolist()) == [0, 6]
        assert noisy.target[0] == 3 + np.argmax(left[3:])


def test_class_dependent_takes_random_samples_of_its_class():
    # One class of 1 000, 250 flips: the mean place of a random choice is 500 with sigma 15.8.
    labels = np.zeros(1000, dtype=np.int64)

    noisy = corrupt(ClassDependent(), labels, ((0,), (1,)))

    assert abs(np.flatnonzero(noisy.given[0]).mean() - 500) < 3 * 15.8


def test_class_dependent_stops_when_the_task_runs_out():
    # Two own samples and eight of impurity: a budget of 9 finds only 2.
    labels = np.array([0, 1] + [2] * 8)

    noisy = corrupt(ClassDependent(rate=0.9), labels, ((0, 1), (2, 3)))

    assert noisy.realised[0] == pytest.approx(0.2)
    assert noisy.given[0][2:].tolist() == [2] * 8


def test_class_dependent_skips_a_class_the_client_lacks():
    labels = np.repeat([1], 8)

    for seed in range(10):
        noisy = corrupt(ClassDependent(), labels, ((0, 1), (2,)), seed=seed)
        assert noisy.realised[0] == 0.25


@pytest.mark.parametrize("kind", [ClassIndependent, ClassDependent])
def test_targets_are_uniform_over_the_other_tasks(kind):
    labels = np.repeat([0, 1, 8, 9], 5)
    drawn = [corrupt(kind(), labels, VEHICLES, seed=seed).target[0] for seed in range(600)]

    hits = np.bincount(drawn, minlength=10)
    assert hits[[0, 1, 8, 9]].sum() == 0
    assert np.abs(hits[2:8] - 100).max() < 3 * np.sqrt(600 / 6 * 5 / 6)


def test_class_dependent_sources_are_uniform_over_the_task():
    labels = np.repeat([0, 1, 8, 9], 5)  # five of twenty: exactly one class is flipped
    firsts = []
    for seed in range(600):
        noisy = corrupt(ClassDependent(), labels, VEHICLES, seed=seed)
        (source,) = set(labels[noisy.given[0] != labels].tolist())
        firsts.append(source)

    hits = np.bincount(firsts, minlength=10)[[0, 1, 8, 9]]
    assert np.abs(hits - 150).max() < 3 * np.sqrt(600 / 4 * 3 / 4)


def test_fbnll_illustration_class_independent():
    # FB-NLL section II, illustration (b).
    # task {0,1,8,9}, no impurity, alpha 0.17, target 7: 17 % of every class.
    labels = np.repeat([0, 1, 8, 9], 500)

    noisy = first_draw(ClassIndependent(rate=0.17), labels, VEHICLES, target=7)
    left = np.bincount(noisy.given[0], minlength=10)

    assert left[7] == 340
    assert left.sum() - left[7] == left[[0, 1, 8, 9]].sum() == 1660
    # 340 draws without replacement: hypergeometric, 85 per class with sigma 7.3.
    assert np.abs(left[[0, 1, 8, 9]] - 415).max() < 3 * 7.3


def test_fbnll_illustration_class_dependent():
    # FB-NLL section II, illustration (c).
    # source 0, target 7; 17 % of all is 68 % of class 0, the rest is untouched.
    labels = np.repeat([0, 1, 8, 9], 500)

    noisy = first_draw(ClassDependent(rate=0.17), labels, VEHICLES, target=7, source=0)

    left = np.bincount(noisy.given[0], minlength=10)
    assert left.tolist() == [160, 500, 0, 0, 0, 0, 0, 340, 500, 500]


def test_fbnll_illustration_uniform():
    # FB-NLL section II, illustration (d).
    # beta 0.1, a client near alpha 0.17; redrawn labels are spread over all ten
    # classes, so about alpha / 10 of the samples gets each of the six foreign ones.
    labels = np.repeat([0, 1, 8, 9], 5000)
    draws = (corrupt(Uniform(rho=1.0, beta=0.1), labels, VEHICLES, seed=s) for s in count())

    noisy = next(d for d in draws if abs(d.rate[0] - 0.17) < 0.01)
    each = noisy.rate[0] / 10 * 20000

    assert noisy.target[0] == -1
    left = np.bincount(noisy.given[0], minlength=10)
    assert np.abs(left[2:8] - each).max() < 3 * np.sqrt(each)


def test_rccpfl_figure_2():
    # Fashion-MNIST, task {0,1,2}, alpha 0.25, no impurity. Class-independent: target 5;
    # class-dependent: source 2 and target 6, three quarters of one class.
    labels = np.repeat([0, 1, 2], 400)
    tasks = ((0, 1, 2), (3, 4, 6), (5, 7, 8, 9))

    independent = first_draw(ClassIndependent(), labels, tasks, target=5).given[0]
    dependent = first_draw(ClassDependent(), labels, tasks, target=6, source=2).given[0]

    assert np.bincount(independent)[5] == 300
    assert np.abs(np.bincount(independent)[:3] - 300).max() < 3 * 7.1  # hypergeometric sigma
    assert np.bincount(dependent).tolist() == [400, 400, 100, 0, 0, 0, 300]


def test_uniform_draws_noisy_clients_and_levels():
    # 2 000 clients of one sample: rho 0.4 of them noisy, levels uniform over (0.2, 1).
    ids = tuple(np.array([k]) for k in range(2000))
    split = Split(
        clients=ids, tasks=((0, 1),), task_of=np.zeros(2000, int), server_ids=np.empty(0, int)
    )

    noisy = Uniform().corrupt(
        np.zeros(2000, int), split, classes=2, rngs=lambda k: stream(0, "noise", k)
    )

    levels = noisy.rate[noisy.is_noisy]
    assert abs(len(levels) - 800) < 3 * np.sqrt(2000 * 0.4 * 0.6)
    assert 0.2 < levels.min() < 0.22
    assert 0.98 < levels.max() < 1.0
    assert levels.mean() == pytest.approx(0.6, abs=3 * 0.8 / np.sqrt(12 * 800))
    assert noisy.realised[~noisy.is_noisy].sum() == 0


def test_uniform_exact_count_without_the_true_class_flips_exactly_the_share():
    labels = np.repeat([0, 1, 2], 100)

    noisy = corrupt(Uniform(rho=1.0, exact_count=True, exclude_true=True), labels, ((0, 1, 2),))

    assert noisy.realised[0] == np.floor(noisy.rate[0] * 300) / 300


def test_rho_zero_is_clean():
    noisy = corrupt(Uniform(rho=0.0), np.zeros(50, int), ((0, 1),))

    assert (noisy.rate[0], noisy.realised[0], noisy.is_noisy[0]) == (0.0, 0.0, False)


@pytest.mark.parametrize("kind", [ClassIndependent, ClassDependent])
def test_task_dependent_noise_needs_a_second_task(kind):
    with pytest.raises(ConfigError) as error:
        corrupt(kind(), np.array([0, 1, 0, 1]), ((0, 1),))

    assert str(error.value) == (
        f"data.noise.kind {kind.choice_name} flips labels to a class outside the client's task, "
        "got a single task of 2 classes; use data.partition.kind tasks with groups of 2 or more, "
        "or set data.noise.kind to uniform"
    )

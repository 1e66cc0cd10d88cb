"""Noise of ClipFL, RHFL and FedRN: by hand, as the slow loop, and against its matrix."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from noise_checks import check_level, check_noise

from raysim.config import load_config
from raysim.data.datasets.classes import CIFAR10_NAMES, CIFAR100_NAMES, CIFAR100_SUPERCLASSES
from raysim.data.noise import NOISE
from raysim.data.partition import Split
from raysim.errors import ConfigError
from raysim.seeding import stream
from raysim.settings import SettingError


def even_split(clients, samples, classes):
    """Clients of ``samples`` samples each; labels run through the classes."""
    ids = np.arange(clients * samples).reshape(clients, samples)
    split = Split(
        clients=tuple(ids),
        tasks=(tuple(range(classes)),),
        task_of=np.zeros(clients, int),
        server_ids=np.empty(0, int),
    )
    return np.arange(clients * samples) % classes, split


def corrupt(kind, *, clients=10, samples=400, classes=10, seed=0, **kwargs):
    labels, split = even_split(clients, samples, classes)
    noisy = NOISE.get(kind)(**kwargs).corrupt(
        labels, split, classes=classes, rngs=lambda k: stream(seed, "noise", k)
    )
    check_noise(noisy, labels, split, classes=classes)
    return labels.reshape(clients, samples), np.array(noisy.given), noisy


def confusion(true, given, classes=10):
    table = np.zeros((classes, classes))
    np.add.at(table, (true.ravel(), given.ravel()), 1)
    return table / table.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("rate", "classes"), [(0.5, 10), (0.8, 10), (0.3, 3)])
def test_symmetric_realises_its_matrix(rate, classes):
    true, given, noisy = corrupt(
        "symmetric", rate=rate, clients=20, samples=2000 * classes, classes=classes
    )

    expected = np.full((classes, classes), rate / (classes - 1))  # section 7
    np.fill_diagonal(expected, 1 - rate)
    # 40,000 draws per row; five sigma, since up to 100 entries are looked at
    sigma = np.sqrt(expected * (1 - expected) / 40000)
    assert (np.abs(confusion(true, given, classes) - expected) < 5 * sigma).all()
    check_level(noisy, wrong_fraction=1.0)


def test_symmetric_is_the_slow_loop():
    true, given, noisy = corrupt("symmetric", rate=0.6, noisy_fraction=0.5, clients=6, samples=50)
    lots = sorted((stream(0, "noise", k).random(), k) for k in range(6))

    assert np.flatnonzero(noisy.is_noisy).tolist() == sorted(k for _, k in lots[:3])
    for _, k in lots[:3]:
        rng = stream(0, "noise", k)
        rng.random()
        wrong = [i for i, u in enumerate(rng.random(50)) if u < 0.6]
        expected = true[k].tolist()
        for i, step in zip(wrong, rng.integers(1, 10, len(wrong)), strict=True):
            expected[i] = (expected[i] + int(step)) % 10
        assert given[k].tolist() == expected
    for _, k in lots[3:]:
        assert given[k].tolist() == true[k].tolist()


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("fraction", "noisy_count"), [(0.0, 0), (0.3, 3), (0.29, 2), (1.0, 10)])
def test_exactly_the_share_of_clients_is_noisy(kind, fraction, noisy_count):
    for seed in range(5):
        _, _, noisy = corrupt(kind, noisy_fraction=fraction, rate=0.8, seed=seed)

        assert noisy.is_noisy.sum() == noisy_count
        assert (noisy.realised > 0).tolist() == noisy.is_noisy.tolist()


def test_every_set_of_noisy_clients_is_equally_likely():
    half = NOISE.get("symmetric")(noisy_fraction=0.5)
    drawn = Counter(
        tuple(half.noisy_clients([stream(s, "noise", k) for k in range(4)])) for s in range(600)
    )

    # Six sets of two out of four: 100 each, sigma 9.1.
    assert len(drawn) == 6
    assert max(abs(n - 100) for n in drawn.values()) < 3.5 * 9.1


def test_all_labels_of_rate_one_are_wrong():
    true, given, _ = corrupt("symmetric", rate=1.0, clients=1)

    assert not (true == given).any()


def test_pair_flips_go_one_class_back_or_forth():
    for class_map, step in (("previous", -1), ("next", 1)):
        true, given, noisy = corrupt("asymmetric", class_map=class_map, rate=0.4)
        changed = given != true

        assert (given[changed] == (true[changed] + step) % 10).all()
        check_level(noisy, wrong_fraction=1.0)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("truck", "automobile"),
        ("bird", "airplane"),
        ("deer", "horse"),
        ("cat", "dog"),
        ("dog", "cat"),
        ("frog", "frog"),
        ("ship", "ship"),
    ],
)
def test_cifar10_look_alikes(source, target):
    true, given, _ = corrupt("asymmetric", class_map="cifar10", rate=1.0)

    rows = true == CIFAR10_NAMES.index(source)
    assert set(given[rows].tolist()) == {CIFAR10_NAMES.index(target)}


def test_cifar100_flips_stay_inside_the_superclass_in_a_circle():
    true, given, _ = corrupt("asymmetric", class_map="cifar100", rate=1.0, classes=100)
    to = dict(zip(true.ravel().tolist(), given.ravel().tolist(), strict=True))

    for group in CIFAR100_SUPERCLASSES:
        visited = [group[0]]
        while len(visited) < 6:
            visited.append(to[visited[-1]])
        assert sorted(visited[:5]) == sorted(group)
        assert visited[5] == group[0]
    assert sorted(c for group in CIFAR100_SUPERCLASSES for c in group) == list(range(100))
    assert to[CIFAR100_NAMES.index("whale")] == CIFAR100_NAMES.index("beaver")


def test_pairs_of_ones_own_replace_the_map():
    true, given, noisy = corrupt("asymmetric", pairs=((1, 7), (4, 4)), rate=1.0)

    expected = np.where(true == 1, 7, true)
    np.testing.assert_array_equal(given, expected)
    assert noisy.realised.tolist() == [0.1] * 10


def test_pairs_are_read_from_a_config():
    config = load_config(
        "quickstart",
        ["data.noise.kind=asymmetric", "data.noise.rate=0.2", "data.noise.pairs=[[9,1],[2,0]]"],
    )

    assert config.data.noise.pairs == ((9, 1), (2, 0))


def test_fedrn_ramp_worked_by_hand():
    # Five clients, 0.0 to 0.4: rates 0, 0.08, 0.16, 0.24, 0.32 of 30 samples: floor of 0, 2.4, 4.8,
    # 7.2, 9.6.
    true, given, noisy = corrupt("ramp", clients=5, samples=30)

    assert (given != true).sum(axis=1).tolist() == [0, 2, 4, 7, 9]
    assert noisy.rate == pytest.approx([0, 0.08, 0.16, 0.24, 0.32])
    assert noisy.is_noisy.tolist() == [False, True, True, True, True]


def test_fedrn_ramp_over_a_hundred_clients_tops_out_at_0396():
    _, _, noisy = corrupt("ramp", clients=100, samples=500)

    assert noisy.rate.max() == pytest.approx(0.396)
    assert noisy.realised == pytest.approx(np.floor(noisy.rate * 500 + 1e-9) / 500)


def test_mixed_ramp_has_two_halves_worked_by_hand():
    # Clients 0-1 symmetric, 2-4 asymmetric: rates 0, 0.2 and 0, 0.4/3, 0.8/3 of 300 samples.
    true, given, _ = corrupt("ramp", flips="mixed", clients=5, samples=300)
    changed = given != true

    assert changed.sum(axis=1).tolist() == [0, 60, 0, 40, 80]
    steps = [set(((given[k] - true[k])[changed[k]] % 10).tolist()) for k in range(5)]
    assert steps[3] == steps[4] == {9}
    assert len(steps[1]) > 5


def test_asymmetric_ramp_and_one_client():
    true, given, _ = corrupt("ramp", flips="asymmetric", low=0.5, high=0.5, clients=1)

    assert (given != true).sum() == 200
    assert set(((given - true)[given != true] % 10).tolist()) == {9}
    assert corrupt("ramp", flips="mixed", clients=1)[2].realised.tolist() == [0.0]


def test_symmetric_flips_of_a_ramp_are_uniform_over_the_other_classes():
    true, given, _ = corrupt("ramp", low=0.5, high=0.5, clients=20, samples=2000)
    steps = np.bincount(((given - true)[given != true]) % 10, minlength=10)

    # 20,000 flips over nine steps: 2,222 each, sigma 44.
    assert steps[0] == 0
    assert np.abs(steps[1:] - 2222).max() < 3.5 * 44.5


def test_labels_of_another_number_of_classes_only_come_from_the_first_ten():
    # FedCorr's released code on CIFAR-100, section 6.
    own = {"rho": 1.0, "beta": 0.9, "classes": 100, "clients": 2, "samples": 2000}
    true, given, _ = corrupt("uniform", first_classes=10, **own)
    changed = given != true

    assert set(given[changed].tolist()) == set(range(10))
    assert set(corrupt("uniform", **own)[1][changed].tolist()) > set(range(50))


@pytest.mark.parametrize(
    ("kind", "kwargs", "text"),
    [
        ("class_independent", {"rate": 1.0}, "rate must be in [0, 1), got 1.0"),
        ("class_dependent", {"rate": -0.1}, "rate must be in [0, 1), got -0.1"),
        ("uniform", {"rho": 1.2}, "rho must be in [0, 1], got 1.2"),
        ("uniform", {"beta": 1.0}, "beta must be in [0, 1), got 1.0"),
        ("symmetric", {"rate": 1.1}, "rate must be in [0, 1], got 1.1"),
        ("symmetric", {"noisy_fraction": -0.1}, "noisy_fraction must be in [0, 1], got -0.1"),
        ("asymmetric", {"rate": -1.0}, "rate must be in [0, 1], got -1.0"),
        (
            "asymmetric",
            {"pairs": ((1, 2), (1, 3))},
            "pairs must name each true class once, got ((1, 2), (1, 3))",
        ),
        ("ramp", {"low": -0.1}, "low must be in [0, 1], got -0.1"),
        ("ramp", {"high": 1.5}, "high must be in [0, 1], got 1.5"),
        ("uniform", {"first_classes": 0}, "first_classes must be at least 1, or null, got 0"),
        (
            "uniform",
            {"first_classes": 10, "exclude_true": True},
            "first_classes cannot be set with exclude_true, got 10; leave one of them out",
        ),
    ],
)
def test_settings_are_refused_when_made(kind, kwargs, text):
    with pytest.raises(SettingError) as error:
        NOISE.get(kind)(**kwargs)

    assert str(error.value) == text


@pytest.mark.parametrize(
    ("kind", "kwargs", "text"),
    [
        ("symmetric", {"classes": 1}, "kind symmetric needs two classes or more, got 1; set"),
        ("ramp", {"classes": 1}, "kind ramp needs two classes or more, got 1; set"),
        ("asymmetric", {"classes": 3, "class_map": "cifar10"}, "class_map cifar10 is for 10 class"),
        ("asymmetric", {"pairs": ((1, 10),)}, "pairs must name classes 0..9, got [1, 10]; write"),
    ],
)
def test_a_dataset_that_does_not_fit_is_refused(kind, kwargs, text):
    with pytest.raises(ConfigError) as error:
        corrupt(kind, **kwargs)

    assert str(error.value).startswith(f"data.noise.{text}")

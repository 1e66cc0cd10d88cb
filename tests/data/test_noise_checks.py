"""The checks of ``noise_checks`` over every registered noise model, and that they find errors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from noise_checks import check_level, check_noise, check_sources

from raysim.data.noise import NOISE, ClassDependent, FileNoise, NoNoise, Uniform
from raysim.data.partition import TaskPartition
from raysim.data.split_file import export_split
from raysim.errors import ConfigError, DataError
from raysim.seeding import stream

LABELS = stream(2, "labels").integers(10, size=4003)
FROM_FILES = {"file", "human"}


def make_split(clients, groups, *, seed=0, labels=LABELS, **kwargs):
    partition = TaskPartition(clients=clients, groups=groups, **kwargs)
    return partition.make_split(
        labels, classes=10, task_table=lambda m: None, per_class=5, rng=stream(seed, "partition")
    )


def corrupt(noise, split, *, seed=0, labels=LABELS):
    return noise.corrupt(labels, split, classes=10, rngs=lambda k: stream(seed, "noise", k))


def same_bytes(one, two):
    def content(noisy):
        fields = [getattr(noisy, field.name) for field in dataclasses.fields(noisy)]
        return [np.concatenate(f) if isinstance(f, tuple) else f for f in fields]

    pairs = zip(content(one), content(two), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def test_registry_names_every_kind():
    drawn = {"class_dependent", "class_independent", "none", "uniform"}

    assert drawn | {"asymmetric", "ramp", "symmetric"} | FROM_FILES <= set(NOISE.names())


@pytest.mark.parametrize("name", sorted({*NOISE.names()} - FROM_FILES))
@pytest.mark.parametrize(("clients", "groups"), [(2, 2), (7, 3), (13, 5), (23, 4)])
def test_every_kind_passes_the_checks(name, clients, groups, tmp_path):
    for seed, split_kind in enumerate(("iid", "dirichlet", "dirichlet_per_class")):
        split = make_split(
            clients, groups, seed=seed, split=split_kind, impurity=("pool", "foreign")[seed % 2]
        )
        noise = NOISE.get(name)()
        noisy = corrupt(noise, split, seed=seed)

        check_noise(noisy, LABELS, split, classes=10)
        assert same_bytes(noisy, corrupt(noise, split, seed=seed))
        if name == "class_dependent":
            check_sources(noisy, LABELS, split)
        if name == "uniform":
            check_level(noisy, wrong_fraction=0.9)

        path = tmp_path / f"{seed}.npz"
        export_split(path, split=split, noisy=noisy, dataset="d", digest="x", seed=seed)
        assert same_bytes(noisy, corrupt(FileNoise(path=str(path)), split))


@pytest.mark.parametrize("exact_count", [False, True])
@pytest.mark.parametrize("exclude_true", [False, True])
def test_uniform_noise_has_the_expected_level(exact_count, exclude_true):
    labels = stream(3, "labels").integers(10, size=40_000)
    split = make_split(20, 5, labels=labels)
    noise = Uniform(rho=1.0, exact_count=exact_count, exclude_true=exclude_true)

    noisy = corrupt(noise, split, labels=labels)

    check_level(noisy, wrong_fraction=1.0 if exclude_true else 0.9)
    with pytest.raises(DataError, match="all clients together got"):
        check_level(noisy, wrong_fraction=0.9 if exclude_true else 1.0)


@pytest.mark.parametrize("name", ["class_dependent", "class_independent", "uniform"])
def test_noise_of_a_client_does_not_depend_on_the_others(name):
    split = make_split(6, 3)
    noise = NOISE.get(name)()
    alone = dataclasses.replace(split, clients=split.clients[4:5], task_of=split.task_of[4:5])

    everyone = corrupt(noise, split)
    single = noise.corrupt(LABELS, alone, classes=10, rngs=lambda k: stream(0, "noise", 4))

    assert np.array_equal(everyone.given[4], single.given[0])


def test_another_seed_gives_other_noise():
    split = make_split(6, 3)

    assert not same_bytes(
        corrupt(ClassDependent(), split, seed=0), corrupt(ClassDependent(), split, seed=1)
    )


def test_true_labels_are_not_modified():
    before = LABELS.copy()

    corrupt(Uniform(rho=1.0), make_split(6, 3))

    assert np.array_equal(LABELS, before)


def altered(noisy, client, labels):
    given = list(noisy.given)
    given[client] = labels
    return dataclasses.replace(noisy, given=tuple(given))


def test_check_noise_finds_wrong_claims():
    split = make_split(4, 2)
    clean, noisy = corrupt(NoNoise(), split), corrupt(ClassDependent(), split)
    own = split.tasks[0][0]
    wrong = noisy.given[0].copy()
    true = LABELS[split.clients[0]]
    wrong[true == wrong] = own  # flips to a second label
    realised = noisy.realised.copy()
    realised[0] = np.mean(wrong != true)
    inside = noisy.target.copy()
    inside[0] = own
    cases = [
        (altered(clean, 1, clean.given[1][1:]), "client 1 got"),
        (altered(clean, 1, clean.given[1].astype(np.int32)), "labels of type int32"),
        (altered(clean, 1, clean.given[1] + 9), "a label that is no class"),
        (dataclasses.replace(clean, realised=clean.realised + 0.1), "realised noise 0.1"),
        (dataclasses.replace(noisy, is_noisy=~noisy.is_noisy), "wrong labels but is called clean"),
        (dataclasses.replace(noisy, target=inside), f"target {own} inside its task"),
        (
            dataclasses.replace(altered(noisy, 0, wrong), realised=realised),
            f"flips beside target {noisy.target[0]}",
        ),
    ]

    for bad, found in cases:
        with pytest.raises(DataError) as error:
            check_noise(bad, LABELS, split, classes=10)
        assert found in str(error.value)


def test_check_sources_finds_flips_of_too_many_classes():
    split = make_split(4, 2, impurity_rate=0.0)
    noisy = corrupt(NOISE.get("class_independent")(), split)

    # Five classes per task with about 20 % of a client each: at most ceil(0.25 / 0.18) + 1 = 3.
    with pytest.raises(DataError, match=r"client 0 got flips from 5 classes, at most 3"):
        check_sources(noisy, LABELS, split)


def test_check_sources_finds_flips_of_foreign_samples():
    split = make_split(4, 2)
    given = [LABELS[ids] for ids in split.clients]
    foreign = np.flatnonzero(given[0] == split.tasks[1][0])
    given[0][foreign] = split.tasks[1][1]
    noisy = dataclasses.replace(corrupt(ClassDependent(), split), given=tuple(given))

    with pytest.raises(DataError, match=r"client 0 got flips from \[5\], task \(0, 1, 2, 3, 4\)"):
        check_sources(noisy, LABELS, split)


def test_check_level_finds_a_single_client():
    split = make_split(4, 2)
    clean = corrupt(NoNoise(), split)
    rate = np.array([0.5, 0.5, 0.5, 0.5])
    realised = np.array([0.45, 0.45, 0.25, 0.65])  # right on the whole, wrong for clients 2 and 3
    sizes = [len(given) for given in clean.given]
    assert sizes[2] == sizes[3]

    with pytest.raises(DataError, match=r"client 2 got realised noise 0\.250, expected 0\.450"):
        check_level(dataclasses.replace(clean, rate=rate, realised=realised), wrong_fraction=0.9)


def test_file_noise_without_a_file():
    with pytest.raises(ConfigError) as error:
        corrupt(FileNoise(), make_split(4, 2))

    assert str(error.value) == (
        "data.noise.path must name a split file when data.partition.kind is not file, got null; "
        "set it, or set data.partition.kind to file"
    )


def test_file_noise_of_another_partition(tmp_path):
    path = tmp_path / "split.npz"
    split = make_split(4, 2)
    export_split(
        path, split=split, noisy=corrupt(NoNoise(), split), dataset="d", digest="x", seed=0
    )

    for other in (make_split(4, 2, seed=1), make_split(5, 2)):
        with pytest.raises(ConfigError) as error:
            corrupt(FileNoise(path=str(path)), other)
        assert str(error.value) == (
            f"data.noise.path: split file {path} holds labels of 4 clients with other samples than "
            f"the {len(other.clients)} of this partition; use that file as data.partition too, or "
            "the settings and seed it was made with"
        )


def test_file_noise_with_labels_that_are_no_class(tmp_path):
    path = tmp_path / "split.npz"
    split = make_split(4, 2)
    export_split(
        path, split=split, noisy=corrupt(NoNoise(), split), dataset="d", digest="x", seed=0
    )

    with pytest.raises(DataError, match=r"must hold labels in 0\.\.4, got 0\.\.9; use the dataset"):
        FileNoise(path=str(path)).corrupt(
            LABELS, split, classes=5, rngs=lambda k: stream(0, "noise", k)
        )

"""Clustering and relabelling of real images: every array library gives what NumPy gives."""

from dataclasses import dataclass

import numpy as np
import pytest

from raysim.core.calibration import calibrate
from raysim.core.clustering import cluster
from raysim.core.metrics import adjusted_rand, correction_report
from raysim.core.relabeling import class_subspaces, relabel
from raysim.core.similarity import similarity_matrix
from raysim.core.spectra import as_numpy, spectrum

TASKS = ((0, 2, 4), (6, 8, 1), (3, 5, 7, 9))
RANK = 8


@dataclass(frozen=True)
class Digits:
    clean: np.ndarray
    clean_labels: np.ndarray
    features: list[np.ndarray]
    given: list[np.ndarray]
    true: list[np.ndarray]
    tasks: list[int]


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    clean = np.concatenate([order[labels[order] == c][:20] for c in range(10)])
    rest = order[~np.isin(order, clean)]
    parts, tasks = [], []
    for task, classes in enumerate(TASKS):
        parts += np.array_split(rest[np.isin(labels[rest], classes)], 3)
        tasks += [task] * 3
    given = []
    for part in parts:
        flipped = rng.random(len(part)) < 0.25
        shift = rng.integers(1, 10, len(part))
        given.append(np.where(flipped, (labels[part] + shift) % 10, labels[part]))
    return Digits(
        clean=images[clean],
        clean_labels=labels[clean],
        features=[images[part] for part in parts],
        given=given,
        true=[labels[part] for part in parts],
        tasks=tasks,
    )


def run(digits, asarray, calibration):
    """Return similarity, groups and relabellings of all clients, computed in one array library."""
    similarity = similarity_matrix([spectrum(asarray(one), RANK) for one in digits.features])
    rank, projection_rank = calibration.rank, calibration.projection_rank
    subspaces = class_subspaces(
        asarray(digits.clean), asarray(digits.clean_labels), max(rank, projection_rank)
    )
    relabelings = [
        relabel(
            asarray(features),
            asarray(labels),
            subspaces,
            rank=rank,
            projection_rank=projection_rank,
            threshold=calibration.threshold,
        )
        for features, labels in zip(digits.features, digits.given, strict=True)
    ]
    return similarity, cluster(similarity, len(TASKS)), relabelings


@pytest.fixture(scope="module")
def calibration(digits):
    return calibrate(digits.clean, digits.clean_labels, np.random.default_rng(0))


@pytest.fixture(scope="module")
def reference(digits, calibration):
    return run(digits, np.asarray, calibration)


def test_every_library_gives_the_groups_and_labels_of_numpy(xp, digits, calibration, reference):
    similarity, groups, relabelings = run(digits, xp.asarray, calibration)

    assert type(similarity) is type(xp.asarray([0.0]))
    assert np.abs(as_numpy(similarity) - reference[0]).max() < 1e-9  # 1e-15 in practice
    assert (groups == reference[1]).all()
    for found, expected in zip(relabelings, reference[2], strict=True):
        assert (as_numpy(found.labels) == expected.labels).all()
        assert (as_numpy(found.phase) == expected.phase).all()
        assert found.decided == expected.decided


def test_pixels_recover_the_tasks_of_the_clients(digits, reference):
    assert adjusted_rand(reference[1], digits.tasks) == 1.0


def test_relabelling_removes_most_of_the_noise(digits, reference):
    report = correction_report(
        np.concatenate(digits.true),
        np.concatenate(digits.given),
        np.concatenate([one.labels for one in reference[2]]),
    )

    assert 0.2 < report["noise_before"] < 0.3
    assert report["noise_after"] < report["noise_before"] / 3


def test_both_phases_take_part(reference):
    assert {int(p) for one in reference[2] for p in one.phase} == {1, 2}

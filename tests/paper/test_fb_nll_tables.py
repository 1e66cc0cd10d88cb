"""FB-NLL's published clustering facts on the real CIFAR-10."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from raysim.core.similarity import similarity_matrix
from raysim.core.spectra import spectrum
from raysim.data.features import hog
from raysim.seeding import stream

pytestmark = [pytest.mark.data, pytest.mark.slow]
VEHICLES, ANIMALS = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
USERS = (VEHICLES, VEHICLES, ANIMALS, ANIMALS, ANIMALS)
IMAGES = 2500


@pytest.fixture(scope="module")
def five_users(real_data):
    """Disjoint images of the five users of Table II."""
    with np.load(real_data("cifar10") / "cifar10.npz", allow_pickle=False) as file:
        images, labels = file["x_train"], file["y_train"]
    order = stream(0, "table2").permutation(len(labels))
    taken, users = set(), []
    for task in USERS:
        ids = [i for i in order if labels[i] in task and i not in taken][:IMAGES]
        taken.update(ids)
        users.append(images[np.sort(ids)])
    return users


def test_table_ii_similarity_inside_and_across_tasks(five_users):
    spectra = [spectrum(hog(user, orientations=9, cell=8, block=1), rank=5) for user in five_users]

    similarity = similarity_matrix(spectra, rank=5)

    inside, across = [], []
    for a, b in itertools.combinations(range(5), 2):
        (inside if USERS[a] == USERS[b] else across).append(similarity[a, b])
    print(f"inside {np.mean(inside):.3f} (published 0.97), across {np.mean(across):.3f} (0.31)")
    assert np.mean(inside) >= 0.95
    assert np.mean(across) <= 0.36


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_fb_nll_partition_of_cifar10_is_recovered(run_tiny, real_data, groups):
    root = real_data("cifar10")
    result = run_tiny(
        "fb_nll_minus",
        f"data={{dataset: cifar10, root: {root}, features: hog, server: {{per_class: 200}}}}",
        f"data.partition={{kind: tasks, clients: 20, groups: {groups}, impurity_rate: 0.08}}",
        "data.noise={kind: class_independent, rate: 0.25}",
        base=("train={rounds: 1, epochs: 1, lr: 0.01}",),
    )

    assert result.summary["ari"] == 1.0
    assert len(set(result.summary["groups"])) == groups

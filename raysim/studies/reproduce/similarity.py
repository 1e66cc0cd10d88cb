"""The entries that need no training: FB-NLL Tables II and VII, and Figure 5.

The paper gives neither the number of images nor the rank of the tables (``SETTINGS``). Of Figure 5
it gives d = 784 and the setting of its reference [1], whose abstract names Fashion-MNIST; MNIST,
the other set of that size, is measured beside it (raysim/docs/sheets/fb_nll.md, "What Tables II and
VII and Figure 5 leave open").
"""
# N images, D dimensions, Q eigenvectors

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysim.core.similarity import ratios, similarity_matrix
from raysim.core.spectra import Spectrum, spectrum
from raysim.data.datasets import DATASETS, Dataset
from raysim.data.datasets.cifar100_subset import OTHERS, VEHICLES, Cifar100Subset
from raysim.data.features import PixelFeatures, hog
from raysim.data.partition import TaskPartition
from raysim.seeding import stream

CIFAR10_VEHICLES, CIFAR10_ANIMALS = (0, 1, 8, 9), (2, 3, 4, 5, 6, 7)
SETTINGS: dict[str, dict[str, Any]] = {
    "fb-nll/table2": {"images": 2500, "orientations": 9, "cell": 8, "block": 1, "rank": 5},
    "fb-nll/table7": {"images": 5000, "orientations": 9, "cell": 8, "block": 1, "rank": 4},
    "fb-nll/figure5": {"clients": 10, "tasks": 3, "impurity_rate": 0.05, "ranks": 50},
}
SAME_TASK, OTHER_TASKS = (0, 3), (6, 9)  # Figure 5; ten clients in three tasks are placed so
ENOUGH = 10  # eigenvectors, FB-NLL section V-A


def measure(name: str, seed: int) -> dict[str, Any]:
    """Return the measured ``values`` of a table or figure by key, and its ``series`` if any."""
    how: dict[str, Callable[..., dict[str, Any]]] = {
        "fb-nll/table2": table_ii,
        "fb-nll/table7": table_vii,
        "fb-nll/figure5": figure_5,
    }
    measured = how[name](seed=seed, **SETTINGS[name])
    return {**measured, "values": {key: round(r, 6) for key, r in measured["values"].items()}}


def datasets_of(name: str) -> list[Dataset]:
    """Return the data sets that the measurement reads."""
    if name == "fb-nll/figure5":
        return [_dataset("fashion_mnist"), _dataset("mnist")]
    both = [_dataset("cifar10"), cifar100()]
    return both[:1] if name == "fb-nll/table2" else both


def cifar100() -> Dataset:
    """Return the subset where its file is, else the whole set, which can be fetched."""
    subset = _dataset("cifar100_subset")
    return subset if subset.sources(None) else _dataset("cifar100")


def _dataset(name: str) -> Dataset:
    return DATASETS.get(name)()


def table_ii(*, seed: int, images: int, rank: int, **how: int) -> dict[str, Any]:
    """Return R of five users: two with vehicles, three with animals, no image in common."""
    pictures, labels = _training_set(_dataset("cifar10"))
    order = stream(seed, "table2").permutation(len(labels))
    vehicles = order[np.isin(labels[order], CIFAR10_VEHICLES)]
    animals = order[np.isin(labels[order], CIFAR10_ANIMALS)]
    picked = [vehicles[:images], vehicles[images : 2 * images]]
    picked += [animals[i * images : (i + 1) * images] for i in range(3)]
    return _pairs([spectrum(hog(pictures[np.sort(ids)], **how), rank=rank) for ids in picked])


def table_vii(*, seed: int, images: int, rank: int, **how: int) -> dict[str, Any]:
    """Return the similarity of CIFAR-10 vehicles to CIFAR-100 vehicles and to its other classes."""
    rng = stream(seed, "table7")
    users = []
    for dataset, classes in (
        (_dataset("cifar10"), CIFAR10_VEHICLES),
        (cifar100(), VEHICLES),
        (cifar100(), OTHERS),
    ):
        pictures, labels = _training_set(dataset)
        ids = np.flatnonzero(np.isin(labels, classes))
        users.append(pictures[np.sort(rng.choice(ids, min(images, len(ids)), replace=False))])
    similar = _pairs([spectrum(hog(user, **how), rank=rank) for user in users])["values"]
    return {"values": {pair: similar[pair] for pair in ("1-2", "1-3")}}


def figure_5(
    *, seed: int, clients: int, tasks: int, impurity_rate: float, ranks: int
) -> dict[str, Any]:
    """Return relevance against the number of eigenvectors, for two pairs of clients, on pixels."""
    partition = TaskPartition(
        clients=clients, groups=tasks, impurity="foreign", impurity_rate=impurity_rate
    )
    values: dict[str, float] = {}
    series: dict[str, list[float]] = {"eigenvectors": list(range(1, ranks + 1))}
    for dataset in datasets_of("fb-nll/figure5"):
        for pair, curve in _curves(dataset, partition, seed, ranks).items():
            key = f"{dataset.choice_name} {pair[0]}-{pair[1]}"
            steps = np.abs(np.diff(curve))
            values |= {f"{key} q={q}": float(curve[q - 1]) for q in (ENOUGH, 2 * ENOUGH, ranks)}
            values[f"{key} largest step to q={ENOUGH}"] = float(steps[: ENOUGH - 1].max())
            values[f"{key} largest step after"] = float(steps[ENOUGH - 1 :].max())
            series[key] = np.round(curve, 6).tolist()
    return {"values": values, "series": series}


def _curves(
    dataset: Dataset, partition: TaskPartition, seed: int, ranks: int
) -> dict[tuple[int, int], np.ndarray]:
    images, labels = _training_set(dataset)
    split = partition.make_split(
        labels, classes=10, task_table=dataset.tasks, per_class=0, rng=stream(seed, "partition")
    )
    spectra = {
        k: spectrum(PixelFeatures().extract(images[split.clients[k]]))
        for k in (*SAME_TASK, *OTHER_TASKS)
    }
    pairs = (SAME_TASK, OTHER_TASKS)
    return {(a, b): relevance_by_rank(spectra[a], spectra[b], ranks) for a, b in pairs}


def relevance_by_rank(a: Spectrum, b: Spectrum, ranks: int) -> np.ndarray:
    """Return (r(a, b) + r(b, a)) / 2 for 1 ... ``ranks`` eigenvectors (Eq. 5 and 6).

    s_i does not depend on how many are compared, so one pass gives all ranks.
    """
    counts = np.arange(1, ranks + 1)
    both: list[np.ndarray] = [np.log(ratios(x, y.vectors[:, :ranks])) for x, y in ((a, b), (b, a))]
    curves = np.stack([np.exp(np.cumsum(logs) / counts) for logs in both])
    return np.asarray(curves.mean(axis=0))


def _training_set(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return images and true labels; a set without a test set of its own gives all it has."""
    from raysim.data.store import materialise
    from raysim.data.truth import true_labels

    store = materialise(dataset, None)
    images, labels = np.asarray(store.train_images), true_labels(store)
    if isinstance(dataset, Cifar100Subset):
        images = np.concatenate([images, store.test_images])
        labels = np.concatenate([labels, store.test_labels])
    return images, labels


def _pairs(spectra: Sequence[Spectrum]) -> dict[str, Any]:
    """Return R (Eq. 6) above the diagonal; users are counted from 1 as in the paper."""
    r = similarity_matrix(spectra)
    pairs = itertools.combinations(range(len(spectra)), 2)
    return {"values": {f"{a + 1}-{b + 1}": float(r[a, b]) for a, b in pairs}}

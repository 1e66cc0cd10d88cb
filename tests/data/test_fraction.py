"""``data.fraction``: a share of every class, drawn before anything else is."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.config import load_config
from raysim.data.partition import check_split
from raysim.data.world import DataSettings, DriverData, used_samples
from raysim.errors import ConfigError
from raysim.seeding import stream

LABELS = np.repeat(np.arange(3), [40, 10, 21])


def driver(*overrides: str, seed: int = 0) -> DriverData:
    return DriverData(load_config("quickstart", overrides).data, seed)


def test_every_class_keeps_its_share_rounded_down():
    used = used_samples(LABELS, 0.25, stream(0, "fraction"))

    assert np.bincount(LABELS[used]).tolist() == [10, 2, 5]
    assert np.array_equal(used, np.unique(used))


def test_one_takes_every_sample_and_draws_nothing():
    rng = stream(0, "fraction")
    before = rng.bit_generator.state

    assert np.array_equal(used_samples(LABELS, 1.0, rng), np.arange(len(LABELS)))
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(
    "partition",
    [
        "{kind: tasks, clients: 12, groups: 3, split: iid}",
        "{kind: tasks, clients: 6, groups: 3, split: dirichlet}",
        "{kind: tasks, clients: 6, groups: 2, split: dirichlet_per_class, impurity: foreign}",
    ],
)
def test_clients_and_server_hold_the_used_samples_and_no_others(partition):
    whole = driver("data.server.per_class=5")
    used = used_samples(whole.true_labels, 0.5, stream(3, "fraction"))

    half = driver(
        "data.fraction=0.5", "data.server.per_class=5", f"data.partition={partition}", seed=3
    )

    check_split(half.split, half.true_labels, claimed=used)
    given = np.concatenate(half.noisy.given)
    true = half.true_labels[np.concatenate(half.split.clients)]
    assert 0 < np.mean(given != true) < 0.3
    for k, ids in enumerate(half.split.clients):
        own = np.isin(half.true_labels[ids], half.split.tasks[half.split.task_of[k]])
        assert own.mean() > 0.8


def test_seeds_draw_other_samples_and_one_seed_the_same():
    first, again, other = (driver("data.fraction=0.5", seed=s).split for s in (0, 0, 1))

    held = [np.sort(np.concatenate([*s.clients, s.server_ids])) for s in (first, again, other)]
    assert np.array_equal(held[0], held[1])
    assert not np.array_equal(held[0], held[2])


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_outside_its_range_is_refused(fraction):
    with pytest.raises(
        ConfigError, match=r"fraction must be in \(0, 1\], got .*; 1.0 takes all images"
    ):
        DataSettings(fraction=fraction)


def test_a_split_file_names_its_samples_and_refuses_a_share():
    with pytest.raises(ConfigError, match=r"data\.fraction must be 1 with partition file"):
        load_config(
            "quickstart", ["data.fraction=0.5", "data.partition={kind: file, path: split.npz}"]
        )


def test_a_share_that_leaves_a_class_without_image_is_refused():
    with pytest.raises(ConfigError, match="leaves class 1 no image, it has 10; raise it"):
        used_samples(LABELS, 0.05, stream(0, "fraction"))

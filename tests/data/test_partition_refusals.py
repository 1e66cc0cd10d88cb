"""Partitions that cannot be: every refusal names the setting, what was found and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.data.partition import PARTITIONS, TaskPartition
from raysim.errors import ConfigError
from raysim.seeding import stream
from raysim.settings import SettingError

LABELS = np.repeat(np.arange(10), 30)


def draw(labels=LABELS, *, per_class=0, classes=10, **kwargs):
    return TaskPartition(**kwargs).make_split(
        labels, classes=classes, task_table=lambda m: None, per_class=per_class, rng=stream(0, "p")
    )


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"clients": 2, "groups": 3},
            "clients must be at least groups (3), or a task has zero clients, got 2; "
            "raise clients or lower groups",
        ),
        ({"groups": 0}, "groups must be at least 1, got 0"),
        ({"impurity_rate": 1.0}, "impurity_rate must be in [0, 1), got 1.0"),
        ({"impurity_rate": -0.1}, "impurity_rate must be in [0, 1), got -0.1"),
        ({"impurity_rate": float("nan")}, "impurity_rate must be in [0, 1), got nan"),
        ({"alpha": 0.0}, "alpha must be above 0, got 0.0"),
        ({"min_client_size": 0}, "min_client_size must be at least 1, got 0"),
        (
            {"groups": 1, "impurity": "foreign"},
            "impurity cannot be foreign with a single group: there is no other task to take "
            "samples from, got 'foreign'; set impurity_rate to 0 or raise groups",
        ),
    ],
)
def test_settings_are_refused_when_made(kwargs, text):
    with pytest.raises(SettingError) as error:
        TaskPartition(**kwargs)

    assert str(error.value) == text
    assert error.value.field == text.split()[0]


def test_more_groups_than_classes():
    with pytest.raises(ConfigError) as error:
        draw(clients=12, groups=11)

    assert str(error.value) == (
        "data.partition.groups must be at most the number of classes (10), got 11; lower it"
    )


def test_server_wants_more_images_than_a_class_has():
    labels = LABELS[:-12]  # 18 images of class 9

    with pytest.raises(ConfigError) as error:
        draw(labels, per_class=20)

    assert str(error.value) == (
        "data.server.per_class must be at most the images of every class, got 20, "
        "but class 9 has 18; lower it to 18 or less"
    )


def test_class_without_image_at_the_server():
    with pytest.raises(ConfigError) as error:
        draw(LABELS[LABELS != 7], per_class=5)

    assert str(error.value) == (
        "data.server.per_class must be 0 here, got 5: class 7 would have no clean image at the "
        "server, the training set has none; set it to 0 or use other data"
    )


def test_class_without_image_is_fine_when_the_server_holds_none():
    split = draw(LABELS[LABELS != 7])

    assert split.server_ids.size == 0


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "dirichlet_per_class"])
def test_task_with_fewer_samples_than_clients(kind):
    # Two tasks of 5 classes with 30 images, of which the server takes 29: 5 samples for 6 clients.
    with pytest.raises(ConfigError) as error:
        draw(clients=12, groups=2, split=kind, impurity_rate=0.0, per_class=29)

    assert str(error.value) == (
        "data.partition.clients must leave every client 1 or more of its task's samples: the 6 "
        "clients of task 0 need 6, got 5 samples of which impurity takes 0; lower clients, "
        "data.partition.impurity_rate, data.partition.min_client_size or data.server.per_class"
    )


def test_iid_clients_below_min_client_size():
    with pytest.raises(ConfigError, match=r"4 clients of task 0 need 400, got 120 samples"):
        draw(clients=12, groups=3, min_client_size=100)


def test_foreign_impurity_that_eats_a_small_task():
    # Task 1 (10 samples) would have to give half of what task 0 (90 samples) holds.
    labels = np.repeat([0, 1], [90, 10])

    with pytest.raises(ConfigError, match=r"task 1 need 1, got 10 samples of which impurity takes"):
        draw(labels, classes=2, clients=2, groups=2, impurity="foreign", impurity_rate=0.5)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_task_without_any_sample(rate):
    labels = np.zeros(50, dtype=np.int64)

    with pytest.raises(ConfigError, match=r"1 clients of task 1 need 1, got 0 samples"):
        draw(labels, classes=2, clients=2, groups=2, impurity="foreign", impurity_rate=rate)


def test_dirichlet_that_never_reaches_the_smallest_size():
    # 150 samples for 6 clients: 25 each is possible only if the cut is exactly even.
    with pytest.raises(ConfigError) as error:
        draw(
            clients=12,
            groups=2,
            split="dirichlet",
            impurity_rate=0.0,
            min_client_size=25,
            alpha=0.5,
        )

    text = str(error.value)
    assert text.startswith(
        "data.partition.min_client_size 25 was not reached by the 6 clients of task 0 in 1000 "
        "Dirichlet draws: the best draw got "
    )
    assert text.endswith(
        "of 150 samples for its smallest client; lower data.partition.clients (now 12) or raise "
        "data.partition.alpha (now 0.5)"
    )


def test_dirichlet_is_redrawn_until_every_client_is_large_enough():
    # At alpha 0.3 most draws of six clients leave one below 5 of 150 samples; some do not.
    split = draw(
        clients=12, groups=2, split="dirichlet", impurity_rate=0.0, min_client_size=5, alpha=0.3
    )

    assert min(len(ids) for ids in split.clients) >= 5


@pytest.mark.parametrize(
    ("kind", "kwargs", "text"),
    [
        ("iid", {"clients": 0}, "clients must be at least 1, got 0"),
        ("shards", {"shards_per_client": 0}, "shards_per_client must be at least 1, got 0"),
        ("dirichlet", {"alpha": 0.0}, "alpha must be in (0, 1e6], got 0.0; use "),
        ("dirichlet", {"alpha": 1e7}, "alpha must be in (0, 1e6], got 10000000.0; "),
        ("dirichlet", {"min_client_size": 0}, "min_client_size must be at least 1, got 0"),
        ("dirichlet_blockwise", {"blocks": 0}, "blocks must be at least 1, got 0"),
        ("bernoulli_dirichlet", {"class_rate": 0.0}, "class_rate must be in (0, 1], got"),
        ("bernoulli_dirichlet", {"class_rate": 1.1}, "class_rate must be in (0, 1], got"),
        ("bernoulli_dirichlet", {"clients": -1}, "clients must be at least 1, got -1"),
    ],
)
def test_settings_of_one_task_are_refused_when_made(kind, kwargs, text):
    with pytest.raises(SettingError) as error:
        PARTITIONS.get(kind)(**kwargs)

    assert str(error.value).startswith(text)

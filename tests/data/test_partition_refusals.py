"""Partitions that cannot be: every refusal names the setting, what was found and what to do."""

from __future__ import annotations

import re

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
    ("kind", "kwargs", "text"),
    [
        (
            "tasks",
            {"clients": 2, "groups": 3},
            "clients must be at least groups (3), or a task has zero clients, got 2; "
            "raise clients or lower groups",
        ),
        ("tasks", {"groups": 0}, "groups must be at least 1, got 0"),
        ("tasks", {"impurity_rate": 1.0}, "impurity_rate must be in [0, 1), got 1.0"),
        ("tasks", {"impurity_rate": -0.1}, "impurity_rate must be in [0, 1), got -0.1"),
        ("tasks", {"impurity_rate": float("nan")}, "impurity_rate must be in [0, 1), got nan"),
        ("tasks", {"alpha": 0.0}, "alpha must be above 0, got 0.0"),
        ("tasks", {"min_client_size": 0}, "min_client_size must be at least 1, got 0"),
        (
            "tasks",
            {"groups": 1, "impurity": "foreign"},
            "impurity cannot be foreign with a single group: there is no other task to take "
            "samples from, got 'foreign'; set impurity_rate to 0 or raise groups",
        ),
        ("iid", {"clients": 0}, "clients must be at least 1, got 0; raise clients"),
        ("shards", {"shards_per_client": 0}, "shards_per_client must be at least 1, got 0"),
        ("dirichlet", {"alpha": 0.0}, "alpha must be in (0, 1e6], got 0.0; use partition iid "),
        ("dirichlet", {"alpha": 1e7}, "alpha must be in (0, 1e6], got 10000000.0; "),
        ("dirichlet", {"min_client_size": 0}, "min_client_size must be at least 1, got 0"),
        ("dirichlet_blockwise", {"blocks": 0}, "blocks must be at least 1, got 0"),
        ("bernoulli_dirichlet", {"class_rate": 0.0}, "class_rate must be in (0, 1], got"),
        ("bernoulli_dirichlet", {"class_rate": 1.1}, "class_rate must be in (0, 1], got"),
        ("bernoulli_dirichlet", {"clients": -1}, "clients must be at least 1, got -1"),
    ],
)
def test_settings_are_refused_when_made(kind, kwargs, text):
    with pytest.raises(SettingError) as error:
        PARTITIONS.get(kind)(**kwargs)

    assert str(error.value).startswith(text)
    assert error.value.field == text.split()[0]


TWO_UNEQUAL = np.repeat([0, 1], [90, 10])
FOREIGN = {"classes": 2, "clients": 2, "groups": 2, "impurity": "foreign"}
TOO_FEW = {"clients": 12, "groups": 2, "impurity_rate": 0.0, "per_class": 29}


@pytest.mark.parametrize(
    ("labels", "kwargs", "text"),
    [
        (
            LABELS,
            {"clients": 12, "groups": 11},
            "groups must be at most the number of classes (10), got 11; lower it",
        ),
        # Two tasks of 5 classes with 30 images, of which the server takes 29: 5 for 6 clients.
        *(
            (
                LABELS,
                {**TOO_FEW, "split": kind},
                "clients must leave every client 1 or more of its task's samples: the 6 clients of "
                "task 0 need 6, got 5 samples of which impurity takes 0; lower clients, "
                "data.partition.impurity_rate, data.partition.min_client_size or "
                "data.server.per_class",
            )
            for kind in ("iid", "dirichlet", "dirichlet_per_class")
        ),
        (
            LABELS,
            {"clients": 12, "groups": 3, "min_client_size": 100},
            "the 4 clients of task 0 need 400, got 120 samples",
        ),
        # Task 1 (10 samples) would have to give half of what task 0 (90 samples) holds.
        (
            TWO_UNEQUAL,
            {**FOREIGN, "impurity_rate": 0.5},
            "task 1 need 1, got 10 samples of which impurity takes",
        ),
        *(
            (
                np.zeros(50, dtype=np.int64),
                {**FOREIGN, "impurity_rate": rate},
                "1 clients of task 1 need 1, got 0 samples",
            )
            for rate in (0.0, 0.3)
        ),
        # 150 samples for 6 clients: 25 each is possible only if the cut is exactly even.
        (
            LABELS,
            {
                **TOO_FEW,
                "per_class": 0,
                "split": "dirichlet",
                "min_client_size": 25,
                "alpha": 0.5,
            },
            "min_client_size 25 was not reached in 1000 draws: the best one got * of 150 samples "
            "for the smallest of the 6 clients of task 0; lower data.partition.clients (now 12) or "
            "raise data.partition.alpha (now 0.5)",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(labels, kwargs, text):
    with pytest.raises(ConfigError) as error:
        draw(labels, **kwargs)

    assert str(error.value).startswith("data.partition.")
    assert re.search(re.escape(text).replace(r"\*", r"\d+"), str(error.value))


@pytest.mark.parametrize(
    ("labels", "per_class", "text"),
    [
        (  # 18 images of class 9
            LABELS[:-12],
            20,
            "data.server.per_class must be at most the images of every class, got 20, "
            "but class 9 has 18; lower it to 18 or less",
        ),
        (
            LABELS[LABELS != 7],
            5,
            "data.server.per_class must be 0 here, got 5: class 7 would have no clean image at the "
            "server, the training set has none; set it to 0 or use other data",
        ),
    ],
)
def test_a_server_that_wants_more_than_there_is_is_refused(labels, per_class, text):
    with pytest.raises(ConfigError) as error:
        draw(labels, per_class=per_class)

    assert str(error.value) == text


def test_class_without_image_is_fine_when_the_server_holds_none():
    split = draw(LABELS[LABELS != 7])

    assert split.server_ids.size == 0


def test_dirichlet_is_redrawn_until_every_client_is_large_enough():
    # At alpha 0.3 most draws of six clients leave one below 5 of 150 samples; some do not.
    split = draw(
        clients=12, groups=2, split="dirichlet", impurity_rate=0.0, min_client_size=5, alpha=0.3
    )

    assert min(len(ids) for ids in split.clients) >= 5

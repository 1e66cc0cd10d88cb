"""Partitions of one global task: by hand, over many settings, and straight from the papers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from raysim.data.partition import PARTITIONS, check_split
from raysim.errors import ConfigError
from raysim.seeding import stream

CIFAR_LABELS = stream(0, "labels").permutation(np.repeat(np.arange(10), 5000))


def draw(kind, labels, *, seed=0, per_class=0, classes=10, **kwargs):
    return PARTITIONS.get(kind)(**kwargs).make_split(
        labels,
        classes=classes,
        task_table=lambda groups: None,
        per_class=per_class,
        rng=stream(seed, "partition"),
    )


def class_counts(split, labels, classes=10):
    return np.array([np.bincount(labels[ids], minlength=classes) for ids in split.clients])


def sizes(split):
    return [len(ids) for ids in split.clients]


SETTINGS = [
    ("iid", {}),
    ("bernoulli_dirichlet", {}),
    ("bernoulli_dirichlet", {"class_rate": 0.3, "alpha": 0.1, "min_client_size": 5}),
    ("shards", {"shards_per_client": 2}),
    ("shards", {"shards_per_client": 5}),
    ("dirichlet", {}),
    ("dirichlet", {"balance": False, "alpha": 5.0}),
    ("dirichlet_blockwise", {}),
    ("dirichlet_blockwise", {"blocks": 3}),
]


@pytest.mark.parametrize(("kind", "kwargs"), SETTINGS)
def test_every_kind_passes_section_12(kind, kwargs):
    labels = stream(1, "labels").integers(10, size=3001)
    for clients, (seed, per_class) in product((1, 7, 20), ((0, 0), (1, 20))):
        own = {"clients": clients, "seed": seed, "per_class": per_class, **kwargs}
        split, again = draw(kind, labels, **own), draw(kind, labels, **own)

        check_split(split, labels, claimed=np.arange(3001))
        assert len(split.clients) == clients
        assert split.tasks == (tuple(range(10)),)
        assert split.task_of.tolist() == [0] * clients
        assert np.bincount(labels[split.server_ids], minlength=10).tolist() == [per_class] * 10
        for ids, same in zip(split.clients, again.clients, strict=True):
            assert ids.dtype == np.int64
            assert np.all(np.diff(ids) > 0)
            assert ids.tobytes() == same.tobytes()


@pytest.mark.parametrize("kind", ["iid", "bernoulli_dirichlet", "shards", "dirichlet"])
def test_another_seed_gives_another_split(kind):
    first, second = (draw(kind, CIFAR_LABELS, clients=10, seed=seed) for seed in (0, 1))

    assert not all(map(np.array_equal, first.clients, second.clients))


def test_number_of_tasks_is_known_before_any_data():
    assert {PARTITIONS.get(kind)(clients=9).groups for kind, _ in SETTINGS} == {1}


def test_iid_of_eleven_samples_worked_by_hand():
    # 11 = 4 + 4 + 3; FedCorr's floor(11 / 3) = 3 leaves two out.
    labels = np.zeros(11, dtype=np.int64)

    assert sizes(draw("iid", labels, clients=3, classes=1)) == [4, 4, 3]
    assert sizes(draw("iid", labels, clients=3, classes=1, drop_remainder=True)) == [3, 3, 3]


def test_iid_clients_have_the_class_mix_of_the_whole():
    counts = class_counts(draw("iid", np.sort(CIFAR_LABELS), clients=100), np.sort(CIFAR_LABELS))

    # 500 of 50,000 without replacement: 50 of each class, sigma 6.7; 1,000 counts, so 5 sigma.
    assert np.abs(counts - 50).max() < 5 * 6.7
    assert counts.sum(axis=1).tolist() == [500] * 100


def test_shards_worked_by_hand():
    # Labels 1 0 1 0 0 1 0 1, two clients with two shards of two: the zeros are samples 1 3 4 6,
    # the ones 0 2 5 7, so the shards are {1,3} {4,6} {0,2} {5,7}, dealt in the order of the draw.
    labels = np.array([1, 0, 1, 0, 0, 1, 0, 1])
    shards = [[1, 3], [4, 6], [0, 2], [5, 7]]

    split = draw("shards", labels, clients=2, shards_per_client=2, classes=2)
    dealt = stream(0, "partition").permutation(4)

    expected = [sorted(shards[a] + shards[b]) for a, b in dealt.reshape(2, 2)]
    assert [ids.tolist() for ids in split.clients] == expected


@pytest.mark.parametrize("shards", [2, 5])
def test_fedrn_shards_have_equal_sizes_and_at_most_s_classes(shards):
    split = draw("shards", CIFAR_LABELS, clients=100, shards_per_client=shards)

    # 50,000 / (100 S) divides a class, so a shard has one class.
    assert sizes(split) == [500] * 100
    held = (class_counts(split, CIFAR_LABELS) > 0).sum(axis=1)
    assert held.max() == shards
    assert held.min() >= 1


def test_every_client_has_every_class_at_class_rate_one_and_a_large_alpha():
    # Shares are 1/5 with sigma 0.0009; 1,000 samples of each class, categorical: 200 +- 12.6.
    labels = np.repeat(np.arange(4), 1000)
    split = draw("bernoulli_dirichlet", labels, clients=5, class_rate=1.0, alpha=40000.0, classes=4)

    assert np.abs(class_counts(split, labels, 4) - 200).max() < 4 * 12.8


def test_one_bernoulli_client_gets_every_sample():
    # Its row may lack classes, but an empty column is drawn again until somebody has the class.
    split = draw("bernoulli_dirichlet", CIFAR_LABELS, clients=1, class_rate=0.3)

    assert sizes(split) == [50000]


def test_fedcorr_clients_have_a_class_with_probability_p():
    split = draw("bernoulli_dirichlet", CIFAR_LABELS, clients=100)
    held = (class_counts(split, CIFAR_LABELS) > 0).mean()

    # 1,000 Bernoulli(0.7): sigma 0.0145. Rows are almost never empty: 0.3^10.
    assert held == pytest.approx(0.7, abs=3 * 0.0145)


def slow_bernoulli(labels, rng, *, clients, classes, rate, alpha):
    """Section 6 in loops; the same draws in the same order."""
    phi = [[bool(u < rate) for u in row] for row in rng.random((clients, classes))]
    while any(not any(row) for row in phi):
        empty = [k for k in range(clients) if not any(phi[k])]
        for k, row in zip(empty, rng.random((len(empty), classes)), strict=True):
            phi[k] = [bool(u < rate) for u in row]
    while empty := [c for c in range(classes) if not any(row[c] for row in phi)]:
        for c, column in zip(empty, rng.random((len(empty), clients)), strict=True):
            for k in range(clients):
                phi[k][c] = bool(column[k] < rate)
    owned = [[] for _ in range(clients)]
    for c in range(classes):
        having = [k for k in range(clients) if phi[k][c]]
        q = rng.dirichlet([alpha] * len(having))
        samples = [i for i, y in enumerate(labels) if y == c]
        for i, u in zip(samples, rng.random(len(samples)), strict=True):
            total, pick = 0.0, 0
            while pick < len(q) and (total := total + q[pick]) <= u:
                pick += 1
            owned[having[min(pick, len(q) - 1)]].append(i)
    return [sorted(ids) for ids in owned]


@pytest.mark.parametrize(("seed", "rate"), [(0, 0.7), (1, 0.2), (2, 0.15)])
def test_bernoulli_dirichlet_is_the_slow_loop(seed, rate):
    labels = stream(seed, "labels").integers(6, size=400)
    own = {"clients": 5, "class_rate": rate, "alpha": 2.0}

    split = draw("bernoulli_dirichlet", labels, seed=seed, classes=6, **own)
    rng = stream(seed, "partition")
    slow = slow_bernoulli(labels, rng, clients=5, classes=6, rate=rate, alpha=2.0)
    while min(map(len, slow)) == 0:  # everything is drawn again
        slow = slow_bernoulli(labels, rng, clients=5, classes=6, rate=rate, alpha=2.0)

    assert [ids.tolist() for ids in split.clients] == slow


def slow_dirichlet_sizes(lengths, rng, *, clients, alpha, balance):
    """Sections 7 and 8 in loops: the size of every client's piece of every class."""
    total, held, table = sum(lengths), [0] * clients, []
    for length in lengths:
        open_to = [k for k in range(clients) if not balance or held[k] < total / clients]
        q = dict(zip(open_to, rng.dirichlet([alpha] * len(open_to)), strict=True))
        before, so_far, row = 0, 0.0, []
        for k in range(clients):
            so_far += q.get(k, 0.0)
            cut = length if k == clients - 1 else round(so_far * length)
            row.append(cut - before)
            before = cut
        held = [n + m for n, m in zip(held, row, strict=True)]
        table.append(row)
    return np.array(table).T


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dirichlet_is_the_slow_loop(seed, balance):
    labels = np.repeat(np.arange(6), [90, 40, 130, 10, 75, 55])
    own = {"clients": 8, "min_client_size": 12, "balance": balance, "alpha": 0.8}

    split = draw("dirichlet", labels, seed=seed, classes=6, **own)
    rng, table = stream(seed, "partition"), np.zeros((8, 6))
    while table.sum(axis=1).min() < 12:
        table = slow_dirichlet_sizes(
            [90, 40, 130, 10, 75, 55], rng, clients=8, alpha=0.8, balance=balance
        )

    np.testing.assert_array_equal(class_counts(split, labels, 6), table)


def test_balance_stops_a_client_at_its_share_worked_by_hand():
    # Two clients, two classes of 100. A tiny alpha gives a class to one client: without balance
    # both classes may go to the same one, with it the second class goes to the other.
    labels = np.repeat([0, 1], 100)
    for seed in range(20):
        split = draw(
            "dirichlet", labels, seed=seed, clients=2, alpha=1e-6, min_client_size=1, classes=2
        )

        assert sorted(class_counts(split, labels, 2).tolist()) == [[0, 100], [100, 0]]


def test_dirichlet_by_label_skews_classes_and_blockwise_hardly_does():
    def spread(kind):
        counts = class_counts(draw(kind, CIFAR_LABELS, clients=100), CIFAR_LABELS)
        shares = counts / counts.sum(axis=1, keepdims=True)
        return float(np.median(shares.max(axis=1)))

    assert spread("dirichlet") > 0.3
    assert spread("dirichlet_blockwise") < 0.16


def test_blocks_are_consecutive_samples():
    # Two blocks of ten; a tiny alpha and balance give each client one block.
    split = draw(
        "dirichlet_blockwise", np.zeros(20, int), clients=2, alpha=1e-6, blocks=2, classes=1
    )

    assert sorted(ids.tolist() for ids in split.clients) == [list(range(10)), list(range(10, 20))]


def test_a_class_without_samples_is_left_out():
    labels = np.repeat([0, 2], 60)
    for kind in ("bernoulli_dirichlet", "dirichlet"):
        split = draw(kind, labels, clients=3, min_client_size=5, classes=3)

        assert class_counts(split, labels, 3).sum(axis=0).tolist() == [60, 0, 60]


@pytest.mark.parametrize(
    ("kind", "kwargs", "needed"),
    [
        ("iid", {"clients": 31}, "1 or more samples: 31 clients need 31, got 30"),
        ("shards", {"clients": 16}, "2 or more samples: 16 clients need 32, got 30"),
        ("dirichlet", {"clients": 4}, "10 or more samples: 4 clients need 40, got 30"),
        ("bernoulli_dirichlet", {"clients": 31}, "1 or more samples: 31 clients need 31, got 30"),
    ],
)
def test_more_clients_than_samples_are_refused(kind, kwargs, needed):
    with pytest.raises(ConfigError) as error:
        draw(kind, np.repeat([0, 1], 20), per_class=5, classes=2, **kwargs)

    assert str(error.value) == (
        f"data.partition.clients must leave every client {needed}; lower it, what each client "
        "needs, or data.server.per_class"
    )


def test_a_size_that_no_draw_reaches_is_refused_with_the_best_one():
    # Five clients want eight of forty samples: only even shares would do.
    with pytest.raises(ConfigError) as error:
        draw("dirichlet", np.zeros(40, int), clients=5, alpha=0.1, min_client_size=8, classes=1)

    text = str(error.value)
    assert text.startswith("data.partition.min_client_size 8 was not reached in 1000 draws: the ")
    assert "of 40 samples for the smallest of 5 clients; lower data.partition.clients" in text


def test_two_clients_cannot_share_one_class_that_goes_to_one():
    with pytest.raises(ConfigError, match="min_client_size 1 was not reached in 1000 draws"):
        draw("bernoulli_dirichlet", np.zeros(40, int), clients=2, alpha=1e-9, classes=1)


def test_a_class_rate_that_leaves_clients_empty_is_refused():
    with pytest.raises(ConfigError, match=r"class_rate left a client .* got 1e-09; raise it"):
        draw("bernoulli_dirichlet", CIFAR_LABELS, clients=3, class_rate=1e-9)

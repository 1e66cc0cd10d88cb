"""The one-shot exchange: what it computes, what it sends, and small clients."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.core.similarity import similarity_matrix
from raysim.core.spectra import spectrum
from raysim.errors import ConfigError
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.grouping import GroupingSettings, exchange, group_by_similarity
from raysim.steps.relevance import relevance_task, vectors_task

D = 6


def features_of(sizes, tasks) -> np.ndarray:
    """Rows near one of two planes, by task, client after client."""
    rng = stream(0, "test.grouping")
    spread = np.array([[4, 2, 1, 0.8, 0.6, 0.5], [0.5, 0.6, 1, 0.8, 2, 4]])
    rows = [
        rng.normal(1.0, spread[task], (size, D)) for size, task in zip(sizes, tasks, strict=True)
    ]
    return np.concatenate(rows).astype(np.float32)


def clients(bench, sizes, tasks, *overrides: str, groups: int = 1):
    made = bench([np.zeros(n, int) for n in sizes], *overrides, classes=1, groups=groups)
    made.world.by_use["grouping"] = features_of(sizes, tasks)
    return made


def expected(made, rank: int) -> np.ndarray:
    rows = made.world.by_use["grouping"]
    return similarity_matrix([spectrum(rows[ids]) for ids in made.ids], rank)


def wire_error(made, rank: int) -> float:
    """Bound on what float32 eigenvectors change.

    An eigenvector is off by eps in every direction, its response Sigma v by eps * lambda_1 * D,
    compared with lambda_q; relevances are averaged, and rounded to float32 once more.
    """
    rows = made.world.by_use["grouping"]
    values = [spectrum(rows[ids]).values for ids in made.ids]
    worst = max(v[0] / v[rank - 1] for v in values)
    return float(np.finfo(np.float32).eps * D * worst)


@pytest.mark.parametrize("rank", [1, 3, D])
def test_the_exchange_gives_the_similarity_matrix_up_to_the_wire(bench, rank):
    made = clients(bench, (40, 30, 50, 35), (0, 0, 1, 1))

    similarity, found = exchange(made.round(), GroupingSettings(rank=rank))

    assert found == rank
    assert np.abs(similarity - expected(made, rank)).max() <= wire_error(made, rank) < 1e-4
    assert np.array_equal(similarity, similarity.T)
    assert np.array_equal(np.diag(similarity), np.ones(4))


def test_the_bytes_are_those_of_the_sheet(bench):
    made = clients(bench, (40, 30, 50, 35), (0, 0, 1, 1))
    context = made.round()

    exchange(context, GroupingSettings(rank=3))

    # Bytes of a grouping, K = 4, d = 6, q = 3, four bytes each: K d q up; K (K - 1) d q down,
    # relayed by the server; K (K - 1) scalars up; and one number q per client to agree on it.
    assert context.entry["bytes"] == {
        "up": {"rank": 4 * 4, "eigenvectors": 4 * 6 * 3 * 4, "relevance": 4 * 3 * 4},
        "down": {"eigenvectors": 4 * 3 * 6 * 3 * 4},
    }


def test_no_label_is_touched(bench):
    made = clients(bench, (40, 30), (0, 1))
    first, _ = exchange(made.round(), GroupingSettings())
    other = bench([np.arange(n) % 5 for n in (40, 30)], classes=5)
    other.world.by_use = made.world.by_use

    second, _ = exchange(other.round(), GroupingSettings())

    assert np.array_equal(first, second)


@pytest.mark.parametrize("rank", [3, "full"])
@pytest.mark.parametrize(
    "cut", [[(0, 1), (2, 3, 4)], [(4,), (1, 3), (0, 2)], [(k,) for k in range(5)]]
)
def test_the_bits_do_not_depend_on_who_shares_an_actor(bench, rank, cut):
    made = clients(bench, (40, 30, 50, 35, 44), (0, 0, 1, 1, 0))
    together, _ = exchange(made.round(), GroupingSettings(rank=rank))

    made.federation = made.cut(cut)
    apart, _ = exchange(made.round(), GroupingSettings(rank=rank))

    assert np.array_equal(together, apart)


# ---- the common rank -------------------------------------------------------------------------


def test_a_number_is_the_rank_of_everyone(bench):
    assert exchange(clients(bench, (40, 30), (0, 1)).round(), GroupingSettings(rank=4))[1] == 4


def test_full_is_all_directions(bench):
    assert exchange(clients(bench, (40, 30), (0, 1)).round(), GroupingSettings(rank="full"))[1] == D


@pytest.mark.parametrize("rule", ["auto", "threshold"])
def test_the_threshold_takes_the_smallest_count_of_all_clients(bench, rule):
    made = clients(bench, (40, 30, 50), (0, 0, 1))
    rows = made.world.by_use["grouping"]
    values = [spectrum(rows[ids]).values for ids in made.ids]
    counts = [int((v >= 0.05 * v[0]).sum()) for v in values]

    _, rank = exchange(made.round(), GroupingSettings(rank=rule, threshold=0.05, smallest_rank=1))

    assert rank == min(counts)
    assert 1 < rank < D


def test_the_threshold_leaves_at_least_the_smallest_rank(bench):
    how = GroupingSettings(rank="threshold", threshold=1.0, smallest_rank=3)

    assert exchange(clients(bench, (40, 30), (0, 1)).round(), how)[1] == 3


@pytest.mark.parametrize(("rule", "asked"), [("full", 6), (5, 5), ("auto", 3), ("threshold", 3)])
def test_a_client_with_few_samples_caps_the_rank_with_a_warning(bench, caplog, rule, asked):
    made = clients(bench, (40, 2, 50), (0, 0, 1))

    similarity, rank = exchange(made.round(), GroupingSettings(rank=rule))

    assert rank == 2
    assert f"rank {asked} is capped at 2 for all clients: client 1" in caplog.text
    assert np.abs(similarity - expected(made, 2)).max() <= wire_error(made, 2)


@pytest.mark.parametrize("rule", ["auto", "full", 4])
def test_a_client_with_one_sample_takes_part(bench, rule):
    made = clients(bench, (40, 1, 50), (0, 0, 1))
    context = made.round()

    similarity, rank = exchange(context, GroupingSettings(rank=rule))

    assert rank == 1
    assert np.isfinite(similarity).all()
    assert context.entry["bytes"]["up"]["eigenvectors"] == 3 * D * 1 * 4


def test_full_rank_is_called_capped_when_every_client_is_small(bench, caplog):
    _, rank = exchange(clients(bench, (4, 5), (0, 1)).round(), GroupingSettings(rank="full"))

    assert rank == 4
    assert "rank 6 is capped at 4" in caplog.text


def test_enough_samples_warn_nobody(bench, caplog):
    exchange(clients(bench, (40, 30), (0, 1)).round(), GroupingSettings(rank="full"))

    assert not caplog.text


def test_one_client_is_like_itself_and_sends_nothing_down(bench):
    context = clients(bench, (40,), (0,)).round()

    similarity, _ = exchange(context, GroupingSettings(rank=2))

    assert similarity.tolist() == [[1.0]]
    assert context.entry["bytes"]["down"] == {"eigenvectors": 0}


# ---- the step --------------------------------------------------------------------------------


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_clients_of_one_task_are_one_group(bench, linkage):
    made = clients(bench, (60, 60, 60, 60, 60), (0, 1, 0, 1, 1), groups=2)
    context = made.round()

    state = group_by_similarity(GroupingSettings(rank=3, linkage=linkage))(context, State())

    assert state.groups == {0: 0, 1: 1, 2: 0, 3: 1, 4: 1}
    assert all(type(group) is int for group in state.groups.values())
    assert context.entry["groups"] == [0, 1, 0, 1, 1]
    assert context.entry["rank"] == 3
    assert np.array_equal(made.artifacts["similarity"], made.artifacts["similarity"].T)


def test_the_number_of_groups_may_differ_from_the_number_of_tasks(bench):
    made = clients(bench, (60, 60, 60, 60), (0, 0, 1, 1), groups=2)

    state = group_by_similarity(GroupingSettings(rank=3, groups=4))(made.round(), State())

    assert sorted(state.groups.values()) == [0, 1, 2, 3]


def test_groups_keep_the_rest_of_the_state(bench):
    made = clients(bench, (40, 30), (0, 1))

    state = group_by_similarity(GroupingSettings())(made.round(), State(values={"a": 1}))

    assert state.values == {"a": 1}


# ---- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"groups": 0}, "groups"),
        ({"rank": 0}, "rank"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": -0.1}, "threshold"),
        ({"smallest_rank": 0}, "smallest_rank"),
        ({"curve": 0}, "curve"),
    ],
)
def test_impossible_settings_are_refused(wrong, field):
    with pytest.raises(SettingError, match=field):
        GroupingSettings(**wrong)


def test_more_groups_than_clients_are_refused_before_the_run(bench):
    config = clients(bench, (40, 30), (0, 1), groups=2).config

    with pytest.raises(
        ConfigError, match=r"method\.grouping\.groups is 3.*data\.partition\.clients is 2"
    ):
        GroupingSettings(groups=3).check(config, D)
    GroupingSettings(groups=2).check(config, D)


def test_a_rank_above_the_dimension_is_refused_before_the_run(bench):
    config = clients(bench, (40, 30), (0, 1)).config

    with pytest.raises(
        ConfigError, match=r"method\.grouping\.rank is 7, above the feature dimension 6"
    ):
        GroupingSettings(rank=7).check(config, D)
    for fine in (6, "full", "auto"):
        GroupingSettings(rank=fine).check(config, D)


def test_directions_too_faint_for_float32_are_answered_in_float64(bench):
    # Each task varies where the other hardly does: the products of float32 would be noise there.
    rng = stream(0, "test.grouping.faint")
    spread = np.array([[5.0] * 12 + [1e-5] * 12, [1e-5] * 12 + [5.0] * 12])
    sizes, tasks = (60, 70, 80, 90), (0, 0, 1, 1)
    rows = [rng.normal(0.0, spread[t], (n, 24)) for n, t in zip(sizes, tasks, strict=True)]
    made = bench([np.zeros(n, int) for n in sizes], classes=1)
    made.world.by_use["grouping"] = np.concatenate(rows)

    similarity, _ = exchange(made.round(), GroupingSettings(rank=4))

    exact = similarity_matrix([spectrum(one) for one in rows], 4)
    assert np.abs(np.log(similarity / exact)).max() < 1e-3  # cross-task values are about 1e-6
    assert exact[0, 2] < 1e-4


@pytest.mark.parametrize(("dimension", "count", "rank"), [(32, 24, 3), (48, 17, 3), (64, 30, 1)])
@pytest.mark.parametrize("cuts", [2, 3, 5])
def test_an_answer_does_not_depend_on_who_answers_beside(bench, dimension, count, rank, cuts):
    rng = stream(0, "test.grouping.company")
    made = bench([np.zeros(80, int)] * count, classes=1)
    made.world.by_use["grouping"] = rng.normal(0.3, 1.0, (80 * count, dimension))
    federation = made.round().federation
    asked = {"how": GroupingSettings(rank=rank), "arrays": "numpy", "rank": rank}
    sent = federation.map(vectors_task, **asked)
    asked["others"] = {"rows": np.stack([sent[k].T for k in range(count)])}

    together = federation.map(relevance_task, **asked)

    for part in np.array_split(np.arange(count), cuts):
        apart = federation.map(relevance_task, on=part.tolist(), **asked)
        assert all(np.array_equal(apart[k], together[k]) for k in part)


def test_the_curve_is_the_mean_similarity_of_each_rank_in_and_between_groups(bench):
    made = clients(bench, (40, 30, 50, 35, 45), (0, 0, 1, 1, 1), groups=2)
    same = np.equal.outer([0, 0, 1, 1, 1], [0, 0, 1, 1, 1])
    pairs = np.triu(np.ones((5, 5), bool), k=1)

    group_by_similarity(GroupingSettings(rank=2, curve=4))(made.round(), State())

    curve = made.artifacts["relevance_by_rank"]
    for rank in range(1, 5):
        similarity = expected(made, rank)
        means = [similarity[pairs & same].mean(), similarity[pairs & ~same].mean()]
        np.testing.assert_allclose(curve[rank - 1], means, atol=wire_error(made, rank))


def test_the_curve_changes_neither_groups_nor_bytes(bench):
    def grouped(how: GroupingSettings):
        context = clients(bench, (40, 30, 50), (0, 1, 1), groups=2).round()
        group_by_similarity(how)(context, State())
        return context.entry

    assert grouped(GroupingSettings(rank=2)) == grouped(GroupingSettings(rank=2, curve=D))


def test_without_a_pair_in_a_group_its_curve_is_empty(bench):
    made = clients(bench, (40, 30), (0, 1), groups=2)

    group_by_similarity(GroupingSettings(rank=2, curve=D + 3))(made.round(), State())

    curve = made.artifacts["relevance_by_rank"]
    assert curve.shape == (D, 2)  # no more than there are directions
    assert np.isnan(curve[:, 0]).all()
    assert np.isfinite(curve[:, 1]).all()

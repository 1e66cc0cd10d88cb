"""The landmark exchange: what it sends, when it is exact, and how far it agrees where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.core.metrics import adjusted_rand
from raysim.errors import ConfigError
from raysim.protocols import State
from raysim.seeding import stream
from raysim.settings import SettingError
from raysim.steps.grouping import (
    GroupingSettings,
    exchange,
    exchange_with_landmarks,
    group_by_similarity,
)

D, Q, GROUPS = 16, 4, 5


def features_of(clients, samples, *, dim, seed, foreign, noise) -> np.ndarray:
    """Rows near the subspace of the client's group (k mod 5), ``foreign`` of them of any group."""
    rng = stream(seed, "test.landmarks")
    bases = np.stack([np.linalg.qr(rng.normal(size=(dim, Q)))[0] for _ in range(GROUPS)])
    group = np.repeat(np.arange(clients) % GROUPS, samples)
    is_foreign = rng.random(len(group)) < foreign
    group = np.where(is_foreign, rng.integers(GROUPS, size=len(group)), group)
    inside = rng.normal(size=(len(group), Q)) * np.array([2.0, 1.5, 1.2, 1.0])
    rows = np.einsum("ndq,nq->nd", bases[group], inside)
    return (rows + noise * rng.normal(size=rows.shape)).astype(np.float32)


def clients(bench, count=20, samples=30, *, dim=D, seed=0, foreign=0.05, noise=0.1):
    labels = [np.zeros(samples, int)] * count
    made = bench(labels, f"seed={seed}", classes=1, groups=GROUPS)
    rows = features_of(count, samples, dim=dim, seed=seed, foreign=foreign, noise=noise)
    made.world.by_use["grouping"] = rows
    return made


def grouped(made, landmarks) -> list[int]:
    step = group_by_similarity(GroupingSettings(rank=Q, landmarks=landmarks))
    return list(step(made.round(), State()).groups.values())


# ---- what it computes ------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, Q, "full"])
def test_the_columns_are_those_of_the_exact_matrix(bench, rank):
    made = clients(bench)
    exact, _ = exchange(made.round(), GroupingSettings(rank=rank))

    how = GroupingSettings(rank=rank, landmarks=7)
    found, landmarks, _ = exchange_with_landmarks(made.round(), how)

    assert found.shape == (20, 7)
    # the products have other shapes, hence other rounding in float32
    assert np.allclose(found, exact[:, landmarks], rtol=0, atol=1e-5)


@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_everyone_a_landmark_is_the_exact_grouping_to_the_bit(bench, linkage):
    made = clients(bench, foreign=0.5, noise=0.5)
    how = GroupingSettings(rank=Q, linkage=linkage)
    exact = group_by_similarity(how)(made.round(), State())

    step = group_by_similarity(GroupingSettings(rank=Q, linkage=linkage, landmarks=20))
    found = step(made.round(), State())

    assert found.groups == exact.groups
    assert np.array_equal(made.artifacts["landmark_similarity"], made.artifacts["similarity"])


def test_the_landmarks_depend_on_the_seed_alone(bench):
    how = GroupingSettings(rank=Q, landmarks=5)
    chosen = [
        exchange_with_landmarks(clients(bench, seed=seed).round(), how)[1].tolist()
        for seed in (0, 0, 1)
    ]

    assert chosen[0] == chosen[1] != chosen[2]
    assert chosen[0] == sorted(set(chosen[0]))


def test_the_round_says_that_landmarks_were_used(bench):
    made = clients(bench)
    context = made.round()

    group_by_similarity(GroupingSettings(rank=Q, landmarks=10))(context, State())

    assert context.entry["landmarks"] == 10
    assert context.entry["rank"] == Q
    assert made.artifacts["landmark_similarity"].shape == (20, 10)
    assert len(made.artifacts["landmarks"]) == 10


# ---- how far it agrees -----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("dim", "foreign", "noise", "least"),
    [
        (32, 0.05, 0.1, 1.0),  # five subspaces of four dimensions have room in 32 ...
        (32, 0.4, 0.5, 0.95),
        (16, 0.05, 0.1, 0.98),  # ... and overlap in 16
        (16, 0.4, 0.5, 0.9),
    ],
    ids=["apart", "apart impure", "overlapping", "overlapping impure"],
)
def test_thirty_landmarks_of_300_clients_agree_with_all_pairs(
    bench, seed, dim, foreign, noise, least
):
    made = clients(bench, 300, 40, dim=dim, seed=seed, foreign=foreign, noise=noise)
    exact, found = grouped(made, None), grouped(made, 30)

    agreement = adjusted_rand(exact, found)

    right = adjusted_rand(np.arange(300) % GROUPS, exact)
    print(f"ARI: landmarks against all pairs {agreement:.3f}, all pairs against truth {right:.3f}")
    assert agreement >= least


def test_a_group_without_a_landmark_is_not_found(bench):
    made = clients(bench)
    landmarks = exchange_with_landmarks(made.round(), GroupingSettings(rank=Q, landmarks=5))[1]
    assert len(set(landmarks % GROUPS)) < GROUPS  # this draw misses a group: why ten per group

    assert adjusted_rand(np.arange(20) % GROUPS, grouped(made, 5)) < 1.0
    assert adjusted_rand(np.arange(20) % GROUPS, grouped(made, 15)) == 1.0


# ---- what it sends ---------------------------------------------------------------------------


def test_only_what_is_needed_is_sent(bench):
    context = clients(bench).round()

    exchange_with_landmarks(context, GroupingSettings(rank=3, landmarks=6))

    # K = 20, L = 6: everyone sends d q numbers once. The 6 landmarks receive the vectors of the
    # 19 others and answer 19 numbers; the 14 other clients receive and answer 6.
    pairs = 6 * 19 + 14 * 6
    assert context.entry["bytes"] == {
        "up": {"rank": 20 * 4, "eigenvectors": 20 * D * 3 * 4, "relevance": pairs * 4},
        "down": {"eigenvectors": pairs * D * 3 * 4},
    }


def test_everyone_a_landmark_sends_what_the_exact_exchange_sends(bench):
    made = clients(bench)
    exact, found = made.round(), made.round()

    exchange(exact, GroupingSettings(rank=3))
    exchange_with_landmarks(found, GroupingSettings(rank=3, landmarks=20))

    assert found.entry["bytes"] == exact.entry["bytes"]


# ---- the same bits everywhere ----------------------------------------------------------------


@pytest.mark.parametrize("rank", [3, "full"])
@pytest.mark.parametrize("parts", [2, 3, 20])
def test_the_bits_do_not_depend_on_who_shares_an_actor(bench, rank, parts):
    made = clients(bench)
    how = GroupingSettings(rank=rank, landmarks=6)
    together, _, _ = exchange_with_landmarks(made.round(), how)

    made.federation = made.cut([tuple(range(first, 20, parts)) for first in range(parts)])
    apart, _, _ = exchange_with_landmarks(made.round(), how)

    assert np.array_equal(together, apart)


@pytest.mark.ray
def test_two_actors_have_the_bits_of_one_process(run_tiny, ray_session):
    landmarks = "method={name: fb_nll, grouping: {landmarks: 6}}"
    alone, spread = (run_tiny("fb_nll", landmarks, actors=n) for n in (0, 2))

    assert alone.summary["groups"] == spread.summary["groups"]
    assert alone.summary["digest"] == spread.summary["digest"]


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("landmarks", "says"),
    [
        (4, r"method\.grouping\.landmarks is 4, but there are 5 groups.*raise it"),
        (21, r"method\.grouping\.landmarks is 21, but data\.partition\.clients is 20.*lower it"),
    ],
)
def test_too_few_or_too_many_landmarks_are_refused_before_the_run(bench, landmarks, says):
    config = clients(bench).config

    with pytest.raises(ConfigError, match=says):
        GroupingSettings(landmarks=landmarks).check(config, D)
    for fine in (None, 5, 20):
        GroupingSettings(landmarks=fine).check(config, D)


def test_no_landmark_at_all_is_refused():
    with pytest.raises(SettingError, match=r"landmarks must be at least 1.*got 0"):
        GroupingSettings(landmarks=0)

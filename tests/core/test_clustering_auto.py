"""How many groups: scores worked by hand, made-up tasks, clients without groups, real digits."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples

from raysim.core import group_count
from raysim.core.clustering import merge_tree
from raysim.core.group_count import choose_count, clarity, cut_scores, silhouettes
from raysim.core.metrics import adjusted_rand
from raysim.core.similarity import similarity_matrix
from raysim.core.spectra import spectrum
from raysim.seeding import stream


def blocks(sizes, *, inside=0.9, outside=0.3, noise=0.0, seed=0):
    """R of groups with these sizes."""
    tasks = np.repeat(np.arange(len(sizes)), sizes)
    matrix = np.where(tasks[:, None] == tasks[None, :], inside, outside)
    half = stream(seed, "test.blocks").normal(0.0, noise, matrix.shape)
    matrix = np.clip(matrix + (half + half.T) / 2, 0.01, 0.99)
    np.fill_diagonal(matrix, 1.0)
    return matrix, tasks


def compared(features, rank):
    """R of clients with these features, and each client's similarity with itself."""
    similarity = similarity_matrix([spectrum(f) for f in features], rank=rank)
    pairs = [[spectrum(half) for half in np.array_split(f, 2)] for f in features]
    return similarity, np.array([similarity_matrix(pair, rank=rank)[0, 1] for pair in pairs])


def made_up_clients(num_clients, num_tasks, *, seed, samples=300):
    """Gaussian features; every task has a covariance of its own, clients draw from it."""
    rng = stream(seed, "test.clients")
    scales = np.concatenate([np.geomspace(3.0, 0.8, 6), np.full(18, 0.1)])
    turns = [np.linalg.qr(rng.normal(size=(24, 24)))[0] for _ in range(num_tasks)]
    tasks = np.arange(num_clients) % num_tasks
    features = [rng.normal(size=(samples, 24)) * scales @ turns[task].T for task in tasks]
    return *compared(features, rank=5), tasks


def test_scores_of_four_clients_worked_by_hand():
    # Pairs (0, 1) and (2, 3) at distance 0.1 and 0.2, everything else at 0.8.
    # Merges: 0.1, 0.2, then 0.8 (the mean of four times 0.8).
    matrix = 1.0 - np.array(
        [[0.0, 0.1, 0.8, 0.8], [0.1, 0.0, 0.8, 0.8], [0.8, 0.8, 0.0, 0.2], [0.8, 0.8, 0.2, 0.0]]
    )

    scores = cut_scores(matrix, merge_tree(matrix))

    # M=2: gap 1 - 0.2/0.8 = 0.75; silhouettes 0.7/0.8 twice and 0.6/0.8 twice, mean 0.8125.
    # M=3: gap 1 - 0.1/0.2 = 0.5; silhouettes 0.7/0.8 twice, 0 for the two alone, mean 0.4375.
    assert scores == pytest.approx({2: (0.75 + 0.8125) / 2, 3: (0.5 + 0.4375) / 2})


def test_distances_within_chance_count_as_equal():
    # As above with chance 0.2: the pairs are as close as can be told, so the gap at M=3 is none.
    matrix = 1.0 - np.array(
        [[0.0, 0.1, 0.8, 0.8], [0.1, 0.0, 0.8, 0.8], [0.8, 0.8, 0.0, 0.2], [0.8, 0.8, 0.2, 0.0]]
    )

    scores = cut_scores(matrix, merge_tree(matrix), chance=0.2)

    # M=2: gap 0.75, all silhouettes 0.75. M=3: gap 0, silhouettes 0.75 twice and 0 twice.
    assert scores == pytest.approx({2: 0.75, 3: 0.375 / 2})
    assert set(cut_scores(matrix, merge_tree(matrix), chance=0.9).values()) == {0.0}


def test_clarity_is_the_score_on_the_scale_of_logarithms():
    # Pairs with R = 0.9 and 0.8, all others with R = 0.2: -log R = 0.10536, 0.22314 and 1.60944.
    matrix = np.array(
        [[1.0, 0.9, 0.2, 0.2], [0.9, 1.0, 0.2, 0.2], [0.2, 0.2, 1.0, 0.8], [0.2, 0.2, 0.8, 1.0]]
    )

    found = clarity(matrix, merge_tree(matrix), 2)

    # gap 1 - 0.22314 / 1.60944 = 0.86135; silhouettes 0.93454 twice and 0.86135 twice
    assert found == pytest.approx((0.86135 + (0.93454 + 0.86135) / 2) / 2, abs=1e-5)


def test_the_yardstick_is_the_mean_log_of_halves_over_root_two():
    matrix, _ = blocks([2, 2])

    found = choose_count(matrix, np.array([0.9, 0.9, 0.8, 0.8]), rng=stream(0, "test"))

    # -log 0.9 = 0.10536, -log 0.8 = 0.22314, mean 0.16425; 1 - exp(-1.25 * 0.16425 / 1.41421)
    assert found.chance == pytest.approx(0.13513, abs=1e-5)


def test_four_clients_in_two_pairs():
    matrix, _ = blocks([2, 2])

    found = choose_count(matrix, np.full(4, 0.9), rng=stream(0, "test"))

    # Without one of them: a pair and one alone, which still is the best cut.
    assert (found.count, found.stability, found.best) == (2, 1.0, 2)
    assert found.groups.tolist() == [0, 0, 1, 1]


def test_silhouettes_are_those_of_scikit_learn():
    matrix, _ = blocks([3, 4, 1], noise=0.1)
    groups = np.array([0, 0, 1, 1, 1, 2, 2, 3])
    distances = 1.0 - matrix

    found = silhouettes(matrix, groups)

    expected = silhouette_samples(distances, groups, metric="precomputed")
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (silhouettes(matrix, np.zeros(8, dtype=np.int64)) == 0).all()


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_clients", [12, 60])
def test_made_up_tasks_are_counted(num_tasks, num_clients):
    similarity, own, tasks = made_up_clients(num_clients, num_tasks, seed=num_clients)

    found = choose_count(similarity, own, rng=stream(0, "test"), repetitions=10)

    assert adjusted_rand(found.groups, tasks) == 1.0
    assert found.stability >= 0.9


@pytest.mark.parametrize("num_tasks", [1, 2, 3])
def test_six_clients_are_enough(num_tasks):
    similarity, own, tasks = made_up_clients(6, num_tasks, seed=7)

    found = choose_count(similarity, own, rng=stream(0, "test"), repetitions=0)

    assert adjusted_rand(found.groups, tasks) == 1.0


def test_clients_of_one_task_are_one_group_nearly_always():
    wrong = 0
    for seed in range(40):
        similarity, own, _ = made_up_clients(10, 1, seed=seed, samples=60)
        wrong += choose_count(similarity, own, rng=stream(seed, "test"), repetitions=0).count != 1

    assert wrong <= 2


def test_unclear_groups_are_not_confident():
    clear, _ = blocks([5, 5, 5], inside=0.8, outside=0.4, noise=0.02)
    vague, _ = blocks([5, 5, 5], inside=0.6, outside=0.4, noise=0.25, seed=3)

    sure = choose_count(clear, np.full(15, 0.9), rng=stream(0, "test"))
    unsure = choose_count(vague, np.full(15, 0.9), rng=stream(0, "test"))

    assert (sure.count, sure.stability) == (3, 1.0)
    assert unsure.stability < 0.8


def test_parts_that_disagree_take_the_confidence_away():
    matrix, _ = blocks([4, 4])
    other, _ = blocks([8], inside=0.7, noise=0.05)
    own = np.full(8, 0.9)

    found = choose_count(matrix, own, rng=stream(0, "t"), parts=[matrix, other], repetitions=20)

    assert (found.count, found.stability) == (2, 0.5)  # every second repetition sees no groups


def test_a_client_alone_beside_groups_is_a_group():
    matrix, tasks = blocks([5, 5, 1])

    found = choose_count(matrix, np.full(11, 0.9), rng=stream(0, "test"))

    assert adjusted_rand(found.groups, tasks) == 1.0


def test_large_federations_use_a_part_of_their_clients(monkeypatch):
    monkeypatch.setattr(group_count, "MOST_REPEATED", 12)
    matrix, tasks = blocks([40, 40, 20], noise=0.05)

    found = choose_count(matrix, np.full(100, 0.9), rng=stream(0, "test"), repetitions=5)

    assert adjusted_rand(found.groups, tasks) == 1.0
    assert max(found.scores) == group_count.MOST_GROUPS


def test_the_same_stream_gives_the_same_answer():
    matrix, _ = blocks([5, 5, 5], inside=0.6, outside=0.4, noise=0.25, seed=3)

    first, second = (choose_count(matrix, np.full(15, 0.9), rng=stream(4, "t")) for _ in range(2))

    assert first.stability == second.stability
    assert first.scores == second.scores


def test_equal_clients_have_one_group():
    found = choose_count(np.ones((5, 5)), np.ones(5), rng=stream(0, "test"))

    assert (found.count, found.stability) == (1, 1.0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_clients_are_refused(count):
    with pytest.raises(ValueError, match=rf"at least 4 clients .* got {count}; name the number"):
        choose_count(np.ones((count, count)), np.ones(count), rng=stream(0, "test"))


@pytest.mark.parametrize("own", [np.ones(4), np.ones((5, 1)), np.full(5, np.nan)])
def test_a_wrong_yardstick_is_refused(own):
    with pytest.raises(ValueError, match=r"own must hold one finite similarity per client \(5\)"):
        choose_count(np.ones((5, 5)), own, rng=stream(0, "test"))


@pytest.mark.parametrize("num_tasks", [1, 2, 3, 5])
def test_tasks_of_the_digits_are_counted(num_tasks, digit_features):
    rows, labels = digit_features
    order = stream(1, "test.digits").permutation(len(rows))
    classes = np.array_split(np.arange(10), num_tasks)
    parts = [order[np.isin(labels[order], task)] for task in classes]
    clients = [ids for part in parts for ids in np.array_split(part, 15 // num_tasks)]

    found = choose_count(*compared([rows[ids] for ids in clients], 10), rng=stream(0, "test"))

    assert found.groups.tolist() == np.repeat(np.arange(num_tasks), 15 // num_tasks).tolist()
    assert found.stability >= 0.9


@pytest.fixture(scope="module")
def digit_features():
    from sklearn.datasets import load_digits

    from raysim.data.features import enlarged, hog

    digits = load_digits()
    rows = hog(enlarged(digits.images[..., None] / 16, 4), orientations=9, cell=8, block=1)
    return rows, digits.target


@pytest.mark.data
@pytest.mark.parametrize("num_tasks", [1, 2, 3])
def test_tasks_of_mnist_are_counted(num_tasks, real_data):
    from raysim.data.datasets import DATASETS
    from raysim.data.features import hog

    real_data("mnist")
    arrays = DATASETS.get("mnist")().load(None)
    labels = arrays.train_labels[:4000]
    rows = hog(arrays.train_images[:4000] / 255, orientations=9, cell=7, block=1)
    parts = [np.flatnonzero(labels % num_tasks == task) for task in range(num_tasks)]
    clients = [ids for part in parts for ids in np.array_split(part, 12 // num_tasks)]

    found = choose_count(*compared([rows[ids] for ids in clients], 10), rng=stream(0, "test"))

    assert found.groups.tolist() == np.repeat(np.arange(num_tasks), 12 // num_tasks).tolist()
    assert found.stability >= 0.9

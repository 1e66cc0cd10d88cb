import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.relabeling import (
    apply_decisions,
    class_spectra,
    class_subspaces,
    client_scores,
    decide,
    project,
    relabel,
    server_scores,
)
from raysim.core.spectra import as_numpy, spectrum

DIMENSION, CLASSES = 12, 4


def class_samples(label, count, rng):
    """Samples near a plane of their own (coordinates 3c..3c+2), with a little of everything."""
    samples = 0.1 * rng.normal(size=(count, DIMENSION))
    scales = np.array([3.0, 2.0, 1.0])
    samples[:, 3 * label : 3 * label + 3] += scales * rng.normal(size=(count, 3))
    return samples


def make_problem(seed, sizes=(40, 40, 40, 25), noise_rate=0.0):
    """Return the clean set, a client's features, given labels and true labels."""
    rng = np.random.default_rng(seed)
    clean = np.concatenate([class_samples(c, 30, rng) for c in range(CLASSES)])
    clean_labels = np.repeat(np.arange(CLASSES), 30)
    true = np.repeat(np.arange(CLASSES), sizes)
    features = np.concatenate([class_samples(c, n, rng) for c, n in enumerate(sizes)])
    flipped = rng.random(len(true)) < noise_rate
    given_labels = np.where(flipped, rng.integers(0, CLASSES, len(true)), true)
    return (clean, clean_labels), features, given_labels, true


def slow_relevance(own, foreign, rank):
    """Procedure 1 with plain loops; returns r(own, foreign)."""
    moment = own.T @ own / len(own)
    values = np.linalg.eigvalsh(moment)[::-1]
    vectors = np.linalg.eigh(foreign.T @ foreign / len(foreign))[1][:, ::-1]
    product = 1.0
    for i in range(rank):
        energy = np.linalg.norm(moment @ vectors[:, i])
        product *= max(min(values[i], energy) / max(values[i], energy), 1e-12)
    return product ** (1.0 / rank)


def slow_relabel(features, labels, clean, *, rank, projection_rank, threshold, smallest):
    """Procedure 2, line by line; ``smallest`` is our guard."""
    server = [clean[0][clean[1] == c] for c in range(CLASSES)]
    subspaces = [np.linalg.eigh(z.T @ z)[1][:, ::-1][:, :projection_rank] for z in server]
    new, phase = labels.copy(), np.zeros(len(labels), dtype=int)
    for local in sorted(set(labels.tolist())):
        rows = [i for i in range(len(labels)) if labels[i] == local]
        reaching = []
        if len(rows) >= smallest:
            for c in range(CLASSES):
                there = slow_relevance(server[c], features[rows], min(rank, len(rows)))
                back = slow_relevance(features[rows], server[c], min(rank, len(rows)))
                if (there + back) / 2 >= threshold:
                    reaching.append(c)
        for i in rows:
            phase[i] = 1 if len(reaching) == 1 else 2
            if len(reaching) == 1:
                new[i] = reaching[0]
            else:
                lengths = [np.linalg.norm(q @ q.T @ features[i]) for q in subspaces]
                new[i] = int(np.argmax(lengths))
    return new, phase


@pytest.mark.parametrize(("threshold", "phases"), [(0.55, {1, 2}), (0.0, {2}), (0.99, {2})])
def test_relabel_equals_procedure_two_line_by_line(xp, threshold, phases):
    clean, features, labels, _ = make_problem(0, noise_rate=0.3)
    labels[:60] = np.where(labels[:60] == 0, 3, labels[:60])
    subspaces = class_subspaces(xp.asarray(clean[0]), xp.asarray(clean[1]), 4)
    options = {"rank": 3, "projection_rank": 4, "threshold": threshold}

    found = relabel(xp.asarray(features), xp.asarray(labels), subspaces, **options)

    new, phase = slow_relabel(features, labels, clean, **options, smallest=20)
    assert set(phase.tolist()) == phases
    assert (as_numpy(found.labels) == new).all()
    assert (as_numpy(found.phase) == phase).all()


@given(st.integers(0, 10_000), st.floats(0.0, 0.9), st.sampled_from([0.3, 0.5, 0.7]))
def test_relabel_equals_procedure_two_on_random_noise(seed, noise_rate, threshold):
    clean, features, labels, _ = make_problem(seed, noise_rate=noise_rate)
    options = {"rank": 3, "projection_rank": 3, "threshold": threshold}

    found = relabel(features, labels, class_subspaces(*clean, 3), **options)

    new, phase = slow_relabel(features, labels, clean, **options, smallest=20)
    assert (found.labels == new).all()
    assert (found.phase == phase).all()


def test_scores_equal_the_average_of_both_directions():
    clean, features, labels, _ = make_problem(1)

    found = relabel(features, labels, class_subspaces(*clean, 3))

    for local, row in found.scores.items():
        mine = features[labels == local]
        for c in range(CLASSES):
            theirs = clean[0][clean[1] == c]
            expected = (slow_relevance(theirs, mine, 3) + slow_relevance(mine, theirs, 3)) / 2
            assert row[c] == pytest.approx(expected, abs=1e-12)


def test_the_pieces_of_the_protocol_give_the_bits_of_relabel(xp):
    clean, features, labels, _ = make_problem(2, noise_rate=0.4)
    features, labels = xp.asarray(features), xp.asarray(labels)
    subspaces = class_subspaces(xp.asarray(clean[0]), xp.asarray(clean[1]), 5)
    whole = relabel(features, labels, subspaces, rank=3, projection_rank=5, threshold=0.5)

    broadcast = subspaces.vectors(5)
    uploads = class_spectra(features, labels, 3, min_class_size=20)
    returned = {c: server_scores(subspaces, one.vectors, 3) for c, one in uploads.items()}
    own = {c: client_scores(one, broadcast, 3) for c, one in uploads.items()}
    scores = {c: (returned[c] + own[c]) / 2 for c in uploads}
    decided = {c: decide(row, 0.5) for c, row in scores.items()}
    new, phase = apply_decisions(features, labels, decided, broadcast[:, :, :5])

    assert scores.keys() == whole.scores.keys()
    assert all((as_numpy(scores[c]) == as_numpy(whole.scores[c])).all() for c in scores)
    assert decided == {c: whole.decided[c] for c in decided}
    assert (as_numpy(new) == as_numpy(whole.labels)).all()
    assert (as_numpy(phase) == as_numpy(whole.phase)).all()


def test_a_class_that_was_renamed_as_a_whole_is_found_in_phase_one():
    clean, features, _, true = make_problem(3)
    renamed = np.where(true == 2, 0, np.where(true == 0, 2, true))

    found = relabel(features, renamed, class_subspaces(*clean, 3), threshold=0.5)

    assert found.decided == {0: 2, 1: 1, 2: 0, 3: 3}
    assert (found.labels == true).all()
    assert (found.phase == 1).all()


def test_new_labels_do_not_feed_later_decisions():
    # Phase 1 renames 0 -> 1 and 1 -> 0: a second look at the written labels would undo it.
    clean, features, _, true = make_problem(4, sizes=(40, 40, 0, 0))

    found = relabel(features, 1 - true, class_subspaces(*clean, 3), threshold=0.5)

    assert (found.labels == true).all()


def test_phase_two_uses_its_own_rank():
    # Mostly along the third direction of class 0, a little along the first one of class 1.
    clean, *_ = make_problem(5)
    sample = np.zeros((1, DIMENSION))
    sample[0, 2], sample[0, 3] = 2.0, 0.5
    subspaces = class_subspaces(*clean, 3)

    poor = relabel(sample, np.array([3]), subspaces, rank=1)
    rich = relabel(sample, np.array([3]), subspaces, rank=1, projection_rank=3)

    assert (poor.labels.tolist(), rich.labels.tolist()) == ([1], [0])


def test_a_projection_rank_of_the_dimension_changes_nothing_in_phase_two():
    clean, features, labels, _ = make_problem(5, noise_rate=0.5)
    many = (np.tile(clean[0], (2, 1)), np.tile(clean[1], 2))
    subspaces = class_subspaces(*many, DIMENSION)

    found = relabel(features, labels, subspaces, threshold=1.0)

    assert (found.phase == 2).all()
    assert (found.labels == labels).all()


def test_small_local_classes_go_to_phase_two_unless_the_literal_rule_is_asked_for():
    clean, features, labels, _ = make_problem(6, sizes=(40, 40, 40, 19))
    subspaces = class_subspaces(*clean, 3)

    guarded = relabel(features, labels, subspaces, threshold=0.4)
    literal = relabel(features, labels, subspaces, threshold=0.4, min_class_size=0)

    assert guarded.decided == {0: 0, 1: 1, 2: 2, 3: None}
    assert set(guarded.scores) == {0, 1, 2}
    assert literal.decided == {0: 0, 1: 1, 2: 2, 3: 3}


def test_the_literal_rule_compares_over_the_directions_a_tiny_class_has():
    clean, features, labels, _ = make_problem(7, sizes=(2, 0, 0, 0))
    subspaces = class_subspaces(*clean, 3)

    with pytest.warns(UserWarning, match="2 samples"):
        found = relabel(features, labels, subspaces, min_class_size=0)

    clean_zero = clean[0][clean[1] == 0]
    expected = slow_relevance(clean_zero, features, 2) + slow_relevance(features, clean_zero, 2)
    assert found.scores[0][0] == pytest.approx(expected / 2, abs=1e-12)


@pytest.mark.parametrize("sizes", [(1, 0, 0, 0), (0, 0, 0, 0), (30, 0, 0, 0)])
def test_one_sample_no_sample_and_one_class_work(sizes):
    clean, features, labels, true = make_problem(8, sizes=sizes)
    features = features.reshape(-1, DIMENSION)

    found = relabel(features, labels, class_subspaces(*clean, 3), threshold=0.5)

    assert (found.labels == true).all()
    assert found.labels.shape == found.phase.shape == (sum(sizes),)


def test_one_clean_class_takes_everything():
    rng = np.random.default_rng(9)
    subspaces = class_subspaces(class_samples(0, 30, rng), np.zeros(30, dtype=int), 3)

    found = relabel(class_samples(1, 25, rng), np.full(25, 3), subspaces)

    assert (found.labels == 0).all()


@given(st.integers(0, 10_000))
def test_relabelling_ignores_a_rotation_of_all_features(seed):
    clean, features, labels, _ = make_problem(seed, noise_rate=0.3)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(DIMENSION, DIMENSION)))[0]

    plain = relabel(features, labels, class_subspaces(*clean, 3), threshold=0.5)
    turned = class_subspaces(clean[0] @ rotation, clean[1], 3)

    assert (
        relabel(features @ rotation, labels, turned, threshold=0.5).labels == plain.labels
    ).all()


def test_class_subspaces_are_the_spectra_of_each_class(xp):
    clean, *_ = make_problem(10)

    found = class_subspaces(xp.asarray(clean[0]), clean[1], 3)

    assert (found.classes, found.rank, found.dimension) == (CLASSES, 3, DIMENSION)
    assert found.vectors(2).shape == (CLASSES, DIMENSION, 2)
    for label, one in enumerate(found.spectra):
        alone = spectrum(clean[0][clean[1] == label], 3)
        assert np.allclose(as_numpy(one.values), alone.values, atol=1e-12)


def test_a_class_with_few_clean_images_is_capped_with_one_warning():
    clean, *_ = make_problem(11)
    keep = np.flatnonzero((clean[1] != 2) | (np.arange(len(clean[1])) % 30 < 2))

    with pytest.warns(UserWarning, match=r"\{2: 2\}") as caught:
        found = class_subspaces(clean[0][keep], clean[1][keep], 4)

    assert len(caught) == 1
    assert [one.rank for one in found.spectra] == [4, 4, 2, 4]
    assert found.rank == 2


def test_labels_come_back_in_the_library_they_came_in(xp):
    clean, features, labels, _ = make_problem(12)
    subspaces = class_subspaces(xp.asarray(clean[0]), clean[1], 3)

    own = relabel(xp.asarray(features), xp.asarray(labels), subspaces)
    mixed = relabel(xp.asarray(features), labels, subspaces)

    assert type(own.labels) is type(xp.asarray(labels))
    assert isinstance(mixed.labels, np.ndarray)


def test_wrong_input_is_refused_with_a_reason():
    clean, features, labels, _ = make_problem(13)
    subspaces = class_subspaces(*clean, 3)

    with pytest.raises(ValueError, match="got none of class 4"):
        class_subspaces(*clean, 3, classes=5)
    with pytest.raises(ValueError, match=r"0\.\.2, got 0\.\.3"):
        class_subspaces(*clean, 3, classes=3)
    with pytest.raises(ValueError, match=r"1\.\.12.*got 13"):
        class_subspaces(*clean, 13)
    for options in ({"rank": 4}, {"projection_rank": 4}, {"rank": 0}):
        with pytest.raises(ValueError, match=r"1\.\.3"):
            relabel(features, labels, subspaces, **options)
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\]"):
        relabel(features, labels, subspaces, threshold=1.2)
    with pytest.raises(ValueError, match="one per feature row"):
        relabel(features, labels[:-1], subspaces)
    with pytest.raises(ValueError, match="dimension 12"):
        project(features[:, :5], subspaces.vectors(), labels)

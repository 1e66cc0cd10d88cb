import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.similarity import (
    num_leading,
    pair_products,
    quadratic_energies,
    quadratic_form,
    ratios,
    relevance,
    relevance_by_rank,
    relevance_of_energies,
    response,
    similarity_matrix,
    symmetric,
)
from raysim.core.spectra import Spectrum, as_numpy, spectrum


def random_clients(seed, sizes=(30, 25, 40, 35), dimension=6):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(size, dimension)) @ rng.normal(size=(dimension, dimension)) + 0.3
        for size in sizes
    ]


def slow_similarity_matrix(clients, rank):
    """Eq. 2-6, client by client, direction by direction."""
    moments = [features.T @ features / len(features) for features in clients]
    pairs = []
    for moment in moments:
        values, vectors = np.linalg.eigh(moment)
        pairs.append((values[::-1], vectors[:, ::-1]))
    r = np.zeros((len(clients), len(clients)))
    for k in range(len(clients)):
        for j in range(len(clients)):
            product = 1.0
            for i in range(rank):
                energy = math.sqrt(sum(x * x for x in moments[k] @ pairs[j][1][:, i]))
                own = pairs[k][0][i]
                product *= min(own, energy) / max(own, energy)
            r[k, j] = product ** (1.0 / rank)
    result = np.eye(len(clients))
    for k in range(len(clients)):
        for j in range(len(clients)):
            if k != j:
                result[k, j] = (r[k, j] + r[j, k]) / 2
    return result


def matrix_of(clients, rank=None):
    return similarity_matrix([spectrum(features) for features in clients], rank)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_similarity_equals_the_slow_loop_over_pairs(xp, rank):
    clients = random_clients(0)

    found = similarity_matrix([spectrum(xp.asarray(one)) for one in clients], rank)

    # The loop multiplies where the code adds logarithms: rounding only.
    assert np.allclose(as_numpy(found), slow_similarity_matrix(clients, rank), atol=1e-12)


def test_small_clients_use_the_factor_and_get_the_same_similarity():
    clients = random_clients(1, sizes=(4, 5, 3), dimension=9)

    assert all(spectrum(one).factor is not None for one in clients)
    assert np.allclose(matrix_of(clients, 3), slow_similarity_matrix(clients, 3), atol=1e-12)


def test_relevance_worked_by_hand(xp):
    # Sigma = diag(4, 1). Foreign directions (1, 1)/sqrt(2) and (0, 1):
    # e = (sqrt(16 + 1)/sqrt(2), 1), s = (min(4, e1)/max(4, e1), 1), r = sqrt(s1).
    own = spectrum(xp.asarray(np.array([[8.0, 0.0], [0.0, 4.0]]) / math.sqrt(8.0)))
    half = math.sqrt(0.5)
    foreign = xp.asarray(np.array([[half, 0.0], [half, 1.0]]))
    energy = math.sqrt(8.5)

    assert as_numpy(own.values) == pytest.approx([4.0, 1.0])
    assert as_numpy(response(own, foreign)) == pytest.approx([energy, 1.0])
    assert as_numpy(ratios(own, foreign)) == pytest.approx([energy / 4.0, 1.0])
    assert float(relevance(own, foreign)) == pytest.approx(math.sqrt(energy / 4.0))


def test_relevance_by_rank_is_the_relevance_of_the_first_directions(xp):
    own, *others = [spectrum(xp.asarray(one), 3) for one in random_clients(3)]
    stacked = xp.stack([other.vectors for other in others])

    found = as_numpy(relevance_by_rank(own, stacked))

    for rank in (1, 2, 3):
        expected = as_numpy(relevance(own, stacked[:, :, :rank]))
        assert found[:, rank - 1] == pytest.approx(expected, abs=1e-12)


def test_a_data_set_is_fully_relevant_to_itself(xp):
    own = spectrum(xp.asarray(random_clients(2)[0]))

    result = relevance(own, own.vectors)

    assert result.shape == ()
    assert float(result) == pytest.approx(1.0, abs=1e-9)


def test_stacked_vectors_give_one_relevance_each(xp):
    own, *others = [spectrum(xp.asarray(one), 3) for one in random_clients(3)]
    stacked = xp.stack([other.vectors for other in others])

    result = relevance(own, stacked)

    assert response(own, stacked).shape == (3, 3)
    for j, other in enumerate(others):
        assert float(result[j]) == pytest.approx(float(relevance(own, other.vectors)), abs=1e-12)


def test_rows_computed_by_the_clients_have_the_bits_of_the_whole_matrix():
    spectra = [spectrum(one, 3) for one in random_clients(4)]
    broadcast = np.stack([one.vectors for one in spectra])

    rows = np.stack([relevance(one, broadcast) for one in spectra])

    assert (symmetric(rows) == similarity_matrix(spectra)).all()


def test_eigenvalues_of_the_responding_client_are_used():
    # Same directions, other eigenvalues: lambda^(k) makes r = 1, lambda^(j) would not.
    small, large = spectrum(np.diag([2.0, 1.0])), spectrum(np.diag([20.0, 3.0]))

    assert relevance(small, large.vectors) == pytest.approx(1.0)


def test_orthogonal_data_hit_the_floor_and_not_zero(xp):
    own = spectrum(xp.asarray([[1.0, 0.0]], dtype=xp.float64))
    other = spectrum(xp.asarray([[0.0, 1.0]], dtype=xp.float64))

    assert float(relevance(own, other.vectors)) == pytest.approx(1e-12, rel=1e-9, abs=0)


def test_directions_in_which_nobody_varies_agree():
    flat = np.hstack([random_clients(5)[0][:, :2], np.zeros((30, 2))])
    also_flat = np.hstack([random_clients(6)[0][:, :2], np.zeros((30, 2))])

    rotation = np.linalg.qr(np.random.default_rng(7).normal(size=(4, 4)))[0]

    # Rotated, the zeros become rounding noise of unlike size, which must not be compared.
    for turn in (np.eye(4), rotation):
        own, other = spectrum(flat @ turn), spectrum(also_flat @ turn)
        assert ratios(own, other.vectors)[2:] == pytest.approx([1.0, 1.0])


def test_a_client_with_blank_samples_gets_finite_similarities(xp):
    blank = spectrum(xp.zeros((2, 6), dtype=xp.float64))
    other = spectrum(xp.asarray(random_clients(7)[0]))

    assert np.isfinite(as_numpy(similarity_matrix([blank, other]))).all()


@given(st.integers(0, 10_000))
def test_similarity_ignores_a_rotation_of_all_features(seed):
    clients = random_clients(seed)
    rotation = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(6, 6)))[0]

    assert np.allclose(
        matrix_of(clients, 4), matrix_of([one @ rotation for one in clients], 4), atol=1e-9
    )


@given(st.integers(0, 10_000), st.permutations(range(4)))
def test_permuting_clients_permutes_the_similarity(seed, order):
    clients = random_clients(seed)

    permuted = matrix_of([clients[k] for k in order], 3)

    assert np.allclose(permuted, matrix_of(clients, 3)[np.ix_(order, order)], atol=1e-12)


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=6, max_size=6))
def test_signs_of_eigenvectors_do_not_matter(signs):
    spectra = [spectrum(one) for one in random_clients(8)]
    flipped = [dataclasses.replace(one, vectors=one.vectors * np.array(signs)) for one in spectra]

    assert np.allclose(similarity_matrix(flipped), similarity_matrix(spectra), atol=1e-14)


@given(st.integers(0, 10_000))
def test_similarity_is_symmetric_in_zero_one_with_unit_diagonal(seed):
    found = matrix_of(random_clients(seed, sizes=(30, 2, 1)))

    assert (found == found.T).all()
    assert (np.diag(found) == 1.0).all()
    assert ((found > 0.0) & (found <= 1.0)).all()


def test_the_default_rank_is_the_smallest_available():
    clients = random_clients(9, sizes=(30, 2, 20))

    assert np.allclose(matrix_of(clients), slow_similarity_matrix(clients, 2), atol=1e-12)


def test_one_client_is_similar_to_itself(xp):
    found = similarity_matrix([spectrum(xp.asarray(random_clients(10)[0]))])

    assert as_numpy(found).tolist() == [[1.0]]


def test_symmetric_averages_and_sets_the_diagonal(xp):
    r = xp.asarray([[0.5, 0.2], [0.6, math.nan]], dtype=xp.float64)

    assert np.allclose(as_numpy(symmetric(r)), [[1.0, 0.4], [0.4, 1.0]])


def test_wrong_input_is_refused_with_a_reason():
    six, five = (spectrum(random_clients(0, dimension=d)[0]) for d in (6, 5))

    with pytest.raises(ValueError, match=r"one feature dimension, got \[5, 6\]"):
        similarity_matrix([six, five])
    with pytest.raises(ValueError, match=r"1\.\.6.*got 7"):
        similarity_matrix([six, six], 7)
    with pytest.raises(ValueError, match="at least one client"):
        similarity_matrix([])
    with pytest.raises(ValueError, match="same features"):
        response(six, five.vectors)
    with pytest.raises(ValueError, match=r"1\.\.2 columns.*got 6"):
        relevance(spectrum(random_clients(0)[0], 2), six.vectors)
    with pytest.raises(ValueError, match="square"):
        symmetric(np.ones((2, 3)))


def test_float32_vectors_from_the_wire_are_accepted(xp):
    first, second = [spectrum(xp.asarray(one), 3) for one in random_clients(11)[:2]]
    uploaded = xp.asarray(as_numpy(second.vectors).astype(np.float32))

    rough = relevance(first, uploaded)

    assert float(rough) == pytest.approx(float(relevance(first, second.vectors)), abs=1e-5)


def test_moment_and_factor_of_one_data_set_respond_alike():
    features = random_clients(12, sizes=(4,), dimension=9)[0]
    by_factor = spectrum(features)
    by_moment = Spectrum(by_factor.values, by_factor.vectors, moment=features.T @ features / 4)
    foreign = spectrum(random_clients(13, sizes=(30,), dimension=9)[0], 4).vectors

    assert np.allclose(response(by_factor, foreign), response(by_moment, foreign), rtol=1e-12)


# ---- quadratic forms -------------------------------------------------------------------------


def stacked_forms(xp, clients):
    spectra = [spectrum(xp.asarray(features)) for features in clients]
    forms = [quadratic_form(one) for one in spectra]
    leading = xp.stack([form.leading for form in forms])
    return spectra, forms, leading, xp.stack([form.packed for form in forms])


@pytest.mark.parametrize("dimension", [2, 6, 30])
def test_quadratic_forms_give_the_norms_of_the_slow_loop(xp, dimension):
    clients = random_clients(3, (50, 60, 70), dimension)
    _, forms, leading, packed = stacked_forms(xp, clients)
    vectors = np.linalg.qr(np.random.default_rng(5).normal(size=(dimension, dimension)))[0]
    columns = xp.asarray(vectors.astype(np.float32))

    found = as_numpy(quadratic_energies(leading, packed, columns, pair_products(columns)))

    for k, features in enumerate(clients):
        moment = features.T @ features / len(features)
        exact = [sum(x * x for x in moment @ vectors[:, i]) for i in range(dimension)]
        assert found[k] == pytest.approx(exact, rel=1e-4, abs=1e-5 * max(exact))
        assert forms[k].leading.shape == (num_leading(dimension), dimension)
        assert forms[k].packed.shape == (dimension * (dimension + 1) // 2,)


def test_pair_products_are_in_the_order_of_the_packed_triangle():
    columns = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    assert pair_products(columns).tolist() == [
        [1, 4],  # v_0 v_0
        [3, 8],  # v_0 v_1
        [5, 12],  # v_0 v_2
        [9, 16],  # v_1 v_1
        [15, 24],  # v_1 v_2
        [25, 36],  # v_2 v_2
    ]


def test_relevance_by_quadratic_forms_equals_relevance(xp):
    clients = random_clients(11, (90, 80, 70, 60), 24)
    spectra, _, leading, packed = stacked_forms(xp, clients)
    rank = 4
    rows = np.stack([as_numpy(one.vectors)[:, :rank].T for one in spectra])  # (K, Q, D)
    columns = xp.asarray(np.ascontiguousarray(rows.reshape(-1, 24).T.astype(np.float32)))
    squares = quadratic_energies(leading, packed, columns, pair_products(columns))
    values = xp.stack([one.values[:rank] for one in spectra])

    found = as_numpy(relevance_of_energies(values, squares))

    others = xp.asarray(np.ascontiguousarray(rows.transpose(0, 2, 1)))
    exact = np.stack([as_numpy(relevance(one, others)) for one in spectra])
    assert np.abs(found - exact).max() < 2e-6


def test_a_direction_the_data_hardly_know_is_below_the_floor_of_the_form():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(200, 24)) * np.array([5.0] * 12 + [1.0] * 11 + [1e-4])
    form = quadratic_form(spectrum(features))
    faint, plain = np.eye(24, dtype=np.float32)[:, [23]], np.eye(24, dtype=np.float32)[:, [15]]

    def energy(column):
        stack = form.leading[None], form.packed[None]
        return float(quadratic_energies(*stack, column, pair_products(column))[0, 0])

    assert energy(faint) < form.floor < energy(plain)

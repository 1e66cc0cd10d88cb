import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.spectra import Spectrum, as_numpy, spectrum, truncate


def second_moment(features):
    """Eq. 2 entry by entry."""
    num_samples, dimension = features.shape
    moment = np.zeros((dimension, dimension))
    for a in range(dimension):
        for b in range(dimension):
            moment[a, b] = sum(float(row[a]) * float(row[b]) for row in features) / num_samples
    return moment


def random_features(seed, num_samples, dimension):
    return np.random.default_rng(seed).normal(0.5, 1.0, (num_samples, dimension))


@pytest.mark.parametrize(("num_samples", "dimension"), [(20, 6), (6, 6), (4, 9), (1, 5), (3, 1)])
def test_eigenpairs_satisfy_the_equation_computed_entry_by_entry(xp, num_samples, dimension):
    features = random_features(1, num_samples, dimension)

    found = spectrum(xp.asarray(features))

    moment = second_moment(features)
    values, vectors = as_numpy(found.values), as_numpy(found.vectors)
    expected = np.sort(np.linalg.eigvalsh(moment))[::-1][: min(num_samples, dimension)]
    assert values.dtype == np.float64
    assert np.allclose(values, expected, atol=1e-12)
    assert np.allclose(moment @ vectors, vectors * values, atol=1e-12)
    assert np.allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-12)


def test_two_samples_worked_by_hand(xp):
    # Phi = [[3, 0], [0, 1]], n = 2: Phi^T Phi / 2 = diag(9/2, 1/2); no mean is subtracted.
    found = spectrum(xp.asarray([[3.0, 0.0], [0.0, 1.0]], dtype=xp.float64))

    assert np.allclose(as_numpy(found.values), [4.5, 0.5], atol=1e-15)
    assert np.allclose(np.abs(as_numpy(found.vectors)), np.eye(2), atol=1e-15)
    assert (found.dimension, found.rank) == (2, 2)


def test_one_sample_has_its_own_direction_and_squared_norm(xp):
    # Phi = (3, 4, 0): Sigma = z z^T, eigenvalue |z|^2 = 25, direction z / 5.
    found = spectrum(xp.asarray([[3.0, 4.0, 0.0]], dtype=xp.float64))

    assert as_numpy(found.values) == pytest.approx([25.0])
    assert np.abs(as_numpy(found.vectors))[:, 0] == pytest.approx([0.6, 0.8, 0.0])


def test_few_samples_keep_the_exact_factor_and_many_keep_the_moment(xp):
    few = spectrum(xp.asarray(random_features(2, 3, 7)))
    many = spectrum(xp.asarray(random_features(2, 7, 3)))

    factor = as_numpy(few.factor)
    assert few.moment is None
    assert factor.shape == (3, 7)
    assert np.allclose(factor.T @ factor, second_moment(random_features(2, 3, 7)))
    assert many.factor is None
    assert np.allclose(as_numpy(many.moment), second_moment(random_features(2, 7, 3)))


def test_weak_directions_of_few_samples_do_not_leak_the_strong_one():
    # Without orthonormalisation 1e-9 of the first direction stays in the last one.
    basis = np.linalg.qr(np.random.default_rng(3).normal(size=(12, 12)))[0]
    mixing = np.linalg.qr(np.random.default_rng(4).normal(size=(4, 4)))[0]
    features = mixing @ (np.array([1.0, 1e-2, 1e-4, 1e-6])[:, None] * basis[:4])

    found = spectrum(features)

    response = np.linalg.norm(found.factor.T @ (found.factor @ found.vectors), axis=0)
    assert found.rank == 4
    assert response == pytest.approx(found.values, rel=1e-3)


def test_repeated_samples_leave_out_directions_of_eigenvalue_zero():
    features = np.repeat(random_features(5, 2, 8), 3, axis=0)

    assert spectrum(features).rank == 2


def test_many_samples_return_directions_of_eigenvalue_zero():
    features = np.hstack([random_features(5, 20, 2), np.zeros((20, 1))])

    found = spectrum(features)

    assert found.rank == 3
    assert found.values[2] == 0.0


def test_eigenvalues_are_never_negative():
    features = np.outer(np.arange(1.0, 30.0), np.arange(1.0, 9.0)) / 7.0  # rank one, rounded

    assert (spectrum(features).values >= 0).all()


@pytest.mark.parametrize("num_samples", [1, 9])
def test_all_zero_features_have_a_spectrum(xp, num_samples):
    found = spectrum(xp.zeros((num_samples, 4), dtype=xp.float64), 1)

    vectors = as_numpy(found.vectors)
    assert as_numpy(found.values) == pytest.approx([0.0])
    assert np.linalg.norm(vectors, axis=0) == pytest.approx([1.0])


def test_integer_and_float32_features_are_computed_in_float64(xp):
    pixels = np.random.default_rng(6).integers(0, 17, (12, 5))

    exact = as_numpy(spectrum(xp.asarray(pixels.astype(np.float64))).values)

    for kind in (np.int64, np.float32):
        assert (as_numpy(spectrum(xp.asarray(pixels.astype(kind))).values) == exact).all()


@pytest.mark.parametrize(("threshold", "rank"), [(0.0, 3), (0.05, 2), (0.25, 2), (0.3, 1), (1, 1)])
def test_threshold_is_a_fraction_of_the_largest_eigenvalue(xp, threshold, rank):
    # Eigenvalues of diag features are squares / 3: 16/3, 4/3, 0.16/3, i.e. 1, 0.25, 0.01.
    features = xp.asarray(np.diag([4.0, 2.0, 0.4]))

    assert spectrum(features, threshold=threshold).rank == rank


def test_rank_and_threshold_both_limit():
    features = np.diag([4.0, 2.0, 0.4])

    assert spectrum(features, rank=1, threshold=0.05).rank == 1
    assert spectrum(features, rank=3, threshold=0.05).rank == 2


def test_rank_equal_to_the_dimension_keeps_everything_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert spectrum(random_features(7, 9, 4), 4).rank == 4
        assert spectrum(random_features(7, 3, 4)).rank == 3


def test_rank_is_capped_by_the_samples_with_a_warning():
    with pytest.warns(UserWarning, match="rank 4 is more than 2 samples can carry"):
        found = spectrum(random_features(8, 2, 5), 4)

    assert found.rank == 2


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9))
def test_eigenvalues_sum_to_the_mean_squared_norm(seed, num_samples, dimension):
    features = random_features(seed, num_samples, dimension)

    assert spectrum(features).values.sum() == pytest.approx((features**2).sum(axis=1).mean())


def test_truncate_keeps_the_leading_directions():
    whole = spectrum(random_features(9, 20, 5))

    cut = truncate(whole, 2)

    assert (cut.values == whole.values[:2]).all()
    assert (cut.vectors == whole.vectors[:, :2]).all()
    assert cut.moment is whole.moment


@pytest.mark.parametrize("rank", [0, 6])
def test_truncate_refuses_directions_that_are_not_there(rank):
    with pytest.raises(ValueError, match=r"1\.\.5.*got " + str(rank)):
        truncate(spectrum(random_features(9, 20, 5)), rank)


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (np.ones(3), {}, "2-D"),
        (np.ones((2, 2, 2)), {}, "2-D"),
        (np.ones((0, 3)), {}, "at least one sample"),
        (np.array([[1.0, np.nan]]), {}, "finite"),
        (np.array([[1.0, np.inf]]), {}, "finite"),
        (np.ones((5, 3)), {"rank": 4}, r"1\.\.3.*got 4"),
        (np.ones((5, 3)), {"rank": 0}, r"1\.\.3.*got 0"),
        (np.ones((5, 3)), {"threshold": 1.5}, r"\[0, 1\].*got 1.5"),
        (np.ones((5, 3)), {"threshold": float("nan")}, r"\[0, 1\]"),
    ],
)
def test_wrong_input_is_refused_with_a_reason(features, options, message):
    with pytest.raises(ValueError, match=message):
        spectrum(features, **options)


def test_a_spectrum_needs_exactly_one_form_of_its_matrix():
    with pytest.raises(ValueError, match="moment or a factor"):
        Spectrum(np.ones(1), np.ones((2, 1)))

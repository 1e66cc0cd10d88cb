"""Named random streams: the same name, the same numbers; another name, other numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from raysim.seeding import stream, stream_seed

RAW = [2192054855072639978, 17289482238584969306]
SEED = 3918763594939659212


def test_the_same_name_gives_the_same_numbers():
    a, b = stream(3, "train", 2, 7), stream(3, "train", 2, 7)

    assert np.array_equal(a.random(100), b.random(100))


def test_asking_for_other_streams_in_between_changes_nothing():
    expected = stream(0, "noise", 4).random(5)
    for client in range(4):
        stream(0, "noise", client).random(1000)

    assert np.array_equal(stream(0, "noise", 4).random(5), expected)


def test_the_global_generator_does_not_matter():
    expected = stream(0, "noise").random(3)
    np.random.seed(5)  # noqa: NPY002

    assert np.array_equal(stream(0, "noise").random(3), expected)


def test_every_part_of_the_name_matters():
    names = itertools.product(
        (0, 1, 2**40), ("train", "noise"), ((), (0,), (1,), (0, 1), (1, 0), (0, 0))
    )

    first = [stream(seed, role, *ids).integers(2**63) for seed, role, ids in names]

    assert len(set(first)) == len(first) == 36


def test_many_clients_and_rounds_have_streams_of_their_own():
    seeds = [stream_seed(0, "train", r, k) for r in range(50) for k in range(200)]

    assert len(set(seeds)) == 10_000


def test_streams_of_neighbours_are_not_correlated():
    draws = np.stack([stream(0, "train", 0, k).standard_normal(4000) for k in range(20)])

    correlation = np.corrcoef(draws) - np.eye(20)

    # 190 pairs, deviation 1 / sqrt(4000) = 0.016: 6 of them leave a chance of 4e-7.
    assert np.abs(correlation).max() < 6 / np.sqrt(4000)


def test_the_numbers_are_pinned():
    # NumPy promises these bits for ever; a change here changes every result with a seed.
    assert stream(0, "test").bit_generator.random_raw(2).tolist() == RAW
    assert stream_seed(0, "test") == SEED


def test_a_seed_for_other_libraries_fits_63_bits():
    seeds = [stream_seed(s, "torch") for s in range(200)]

    assert all(isinstance(s, int) and 0 <= s < 2**63 for s in seeds)
    assert max(seeds) > 2**61  # all bits are used
    assert len(set(seeds)) == 200


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError):
        stream(-1, "train")

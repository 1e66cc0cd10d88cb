import functools
import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.aggregation import (
    GRID,
    WIDE,
    Accumulator,
    ExactSum,
    mean,
    merge,
    on_grid,
    stack_on_grid,
    total_weight,
)


def random_trees(seed, count=7):
    rng = np.random.default_rng(seed)
    trees = [
        {
            "layer.weight": rng.normal(0.0, 3.0, (3, 4)).astype(np.float32),
            "layer.bias": rng.normal(0.0, 1e-4, 4).astype(np.float32),
            "scale": np.float32(rng.normal()),
        }
        for _ in range(count)
    ]
    return trees, rng.uniform(0.1, 500.0, count).tolist()


def sum_of(parts):
    return functools.reduce(merge, parts)


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].tobytes() == b[name].tobytes()


@given(st.integers(0, 10_000), st.permutations(range(7)), st.sets(st.integers(1, 6)))
def test_any_order_and_any_partition_gives_the_same_bits(seed, order, cuts):
    trees, weights = random_trees(seed)
    parts = [on_grid(tree, weight) for tree, weight in zip(trees, weights, strict=True)]
    bounds = [0, *sorted(cuts), 7]

    shuffled = [parts[k] for k in order]
    partial = [sum_of(shuffled[a:b]) for a, b in itertools.pairwise(bounds)]

    straight, folded = sum_of(parts), sum_of(partial)
    assert_same_bits(mean(straight), mean(folded))
    assert total_weight(straight) == total_weight(folded)
    assert (straight.bound, straight.count) == (folded.bound, folded.count)


@given(st.integers(0, 10_000))
def test_the_mean_is_within_1e_9_of_exact_arithmetic(seed):
    trees, weights = random_trees(seed)
    total = sum_of(on_grid(tree, w) for tree, w in zip(trees, weights, strict=True))

    found = mean(total, dtype=np.float64)

    exact_weights = [Fraction(w) for w in weights]
    for name in ("layer.weight", "layer.bias", "scale"):
        rows = [np.ravel(tree[name]).tolist() for tree in trees]
        for i, value in enumerate(np.ravel(found[name])):
            exact = sum(
                w * Fraction(row[i]) for w, row in zip(exact_weights, rows, strict=True)
            ) / sum(exact_weights)
            assert abs(Fraction(float(value)) - exact) < Fraction(1, 10**9)


def test_a_weighted_mean_worked_by_hand():
    # (1 * 2 + 3 * 6) / 4 = 5
    total = merge(on_grid({"w": np.array([2.0])}, 1), on_grid({"w": np.array([6.0])}, 3))

    assert mean(total)["w"].tolist() == [5.0]
    assert total_weight(total) == 4.0
    assert total.count == 2


def test_equal_trees_average_to_themselves_whatever_the_weights():
    trees, weights = random_trees(1)

    total = sum_of(on_grid(trees[0], weight) for weight in weights)

    assert_same_bits(mean(total), {name: np.asarray(value) for name, value in trees[0].items()})


def test_the_accumulator_gives_the_bits_of_merge_and_leaves_its_input_alone():
    trees, weights = random_trees(2)
    parts = [on_grid(tree, weight) for tree, weight in zip(trees, weights, strict=True)]
    before = [{name: array.copy() for name, array in part.totals.items()} for part in parts]

    accumulator = Accumulator()
    for part in parts:
        accumulator.add(part)
    total = accumulator.take()

    assert_same_bits(total.totals, sum_of(parts).totals)
    assert total.weight == sum_of(parts).weight
    for part, copy in zip(parts, before, strict=True):
        assert_same_bits(part.totals, copy)


def test_the_accumulator_adds_in_place():
    trees, _ = random_trees(3)
    accumulator = Accumulator()
    accumulator.add(on_grid(trees[0], 1.0))
    arrays = dict(accumulator._sum.totals)

    accumulator.add(on_grid(trees[1], 1.0))

    assert all(accumulator._sum.totals[name] is array for name, array in arrays.items())


def test_take_empties_the_accumulator():
    accumulator = Accumulator()
    accumulator.add(on_grid({"w": np.ones(2)}, 1.0))

    accumulator.take()

    with pytest.raises(ValueError, match="no contribution"):
        accumulator.take()


def test_means_are_float32_and_keep_shapes():
    trees, weights = random_trees(4)

    found = mean(on_grid(trees[0], weights[0]))

    assert {name: array.shape for name, array in found.items()} == {
        "layer.weight": (3, 4),
        "layer.bias": (4,),
        "scale": (),
    }
    assert all(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in found.values())


def test_empty_entries_and_integer_entries_are_fine():
    total = on_grid({"none": np.zeros((0, 3)), "steps": np.array([3, 4])}, 2.0)

    assert mean(total)["none"].shape == (0, 3)
    assert mean(total)["steps"].tolist() == [3.0, 4.0]


LARGEST = 2.0**67
"""What a weighted sum must stay below."""


def test_large_entries_have_the_bits_of_small_ones_in_any_order():
    # Running variances of a network that took a bad step, beside ordinary ones.
    rng = np.random.default_rng(0)
    trees = [
        {"w": rng.normal(size=3), "buffers": rng.normal(size=3) * 10.0**power}
        for power in (0, 7, 3, 12, 9, 1)
    ]
    weights = [193.0, 600.0, 1.0, 0.5, 77.0, 512.0]
    parts = [on_grid(t, w) for t, w in zip(trees, weights, strict=True)]

    forward = mean(sum_of(parts), np.float64)
    backward = mean(merge(sum_of(parts[:2:-1]), sum_of(parts[2::-1])), np.float64)
    stacked = {name: np.stack([t[name] for t in trees]) for name in trees[0]}
    together = mean(stack_on_grid(stacked, np.array(weights)), np.float64)

    for name in forward:
        assert forward[name].tobytes() == backward[name].tobytes() == together[name].tobytes()
        exact = [
            sum(Fraction(w) * Fraction(t[name][i]) for t, w in zip(trees, weights, strict=True))
            / Fraction(sum(weights))
            for i in range(3)
        ]
        np.testing.assert_allclose(forward[name], [float(x) for x in exact], rtol=1e-15, atol=1e-13)


@pytest.mark.parametrize("value", [WIDE * GRID, -WIDE * GRID])
def test_an_entry_is_whole_where_it_becomes_wide(value):
    near = np.array([value, value * (1 + 2.0**-40), value / 3])

    total = merge(on_grid({"w": near}, 1.0), on_grid({"w": near}, 1.0))

    assert total.high
    np.testing.assert_array_equal(mean(total, np.float64)["w"], np.rint(near / GRID) * GRID)


def test_the_accumulator_keeps_large_entries():
    part = on_grid({"w": np.array([3e9, 1.0])}, 2.0)
    accumulator = Accumulator()
    for _ in range(3):
        accumulator.add(part)

    total = accumulator.take()

    assert mean(total, np.float64)["w"].tolist() == [3e9, 1.0]
    assert mean(part, np.float64)["w"].tolist() == [3e9, 1.0]  # what was added stays


def test_overflow_is_refused_before_an_entry_wraps():
    half = on_grid({"w": np.array([0.6 * LARGEST])}, 1.0)
    accumulator = Accumulator()
    accumulator.add(half)

    for add in (lambda: merge(half, half), lambda: accumulator.add(half)):
        with pytest.raises(OverflowError, match="smaller weights"):
            add()
    assert accumulator.take().totals["w"] == half.totals["w"]


def test_many_small_sums_reach_the_bound_together():
    part = on_grid({"w": np.array([0.4 * LARGEST])}, 1.0)
    two = merge(part, part)

    with pytest.raises(OverflowError):
        merge(two, part)


def test_opposite_signs_still_count_towards_the_bound():
    up = on_grid({"w": np.array([0.6 * LARGEST])}, 1.0)
    down = on_grid({"w": np.array([-0.6 * LARGEST])}, 1.0)

    # The sum is zero, but a third contribution could meet either half first.
    with pytest.raises(OverflowError):
        merge(up, down)


@pytest.mark.parametrize("value", [2.0**67, -(2.0**67) * 1.01, 1e300])
def test_one_contribution_that_is_too_large_names_its_entry(value):
    with pytest.raises(OverflowError, match=r"'w'.*diverged"):
        on_grid({"w": np.array([value])}, 1.0)


def test_the_largest_value_that_fits_survives():
    value = 2.0**67 - 2.0**20

    assert mean(on_grid({"w": np.array([value])}, 1.0), np.float64)["w"].tolist() == [value]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_name_their_entry(value):
    with pytest.raises(ValueError, match=r"'layer\.bias' must be finite"):
        on_grid({"ok": np.ones(2), "layer.bias": np.array([1.0, value])}, 1.0)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_not_positive_are_refused(weight):
    with pytest.raises(ValueError, match="positive and finite"):
        on_grid({"w": np.ones(1)}, weight)


def test_a_weight_below_the_grid_is_refused():
    with pytest.raises(ValueError, match="scale the weights up"):
        on_grid({"w": np.ones(1)}, GRID / 4)


def test_sums_of_different_models_are_refused():
    one = on_grid({"w": np.ones(2)}, 1.0)

    with pytest.raises(ValueError, match=r"differences in \['w'\]"):
        merge(one, on_grid({"w": np.ones(3)}, 1.0))
    with pytest.raises(ValueError, match=r"differences in \['b', 'w'\]"):
        merge(one, on_grid({"b": np.ones(2)}, 1.0))


def test_sums_survive_pickling():
    total = on_grid({"w": np.array([1.5])}, 2.0)

    copy = pickle.loads(pickle.dumps(total))

    assert isinstance(copy, ExactSum)
    assert_same_bits(mean(copy), mean(total))

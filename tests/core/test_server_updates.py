"""FedNova and FedAdam, against raysim/docs/sheets/optimizers.md as loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.core.server_updates import effective_steps, fedadam, fednova

KNOBS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 0.001}


def float32(*values):
    return np.array(values, dtype=np.float32)


def moved_by_momentum(steps, momentum):
    """How far SGD with momentum goes along a gradient of one, with a step size of one."""
    place = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        place += velocity
    return place


@given(st.integers(1, 200), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_effective_steps_are_how_far_momentum_carries(steps, momentum):
    assert effective_steps(steps, momentum) == pytest.approx(moved_by_momentum(steps, momentum))


def test_effective_steps_worked_by_hand():
    assert effective_steps(7, 0.0) == 7.0
    assert effective_steps(1, 0.9) == pytest.approx(1.0)
    assert effective_steps(2, 0.5) == pytest.approx(2.5)  # 1 + (1 + 1/2)


def test_fednova_walks_the_mean_direction_for_the_mean_number_of_steps():
    # Two clients, a = 2 and 4, moved from 1 to 0 and to -1: d = 0.5 and 0.5, tau = 3.
    # FedAvg would give -0.5; FedNova 1 - 3 * 0.5.
    assert fednova(float32(1.0), float32(0.5), 3.0).tolist() == [-0.5]
    # a = 1 and 3 for the same moves: d = 1 and 2/3, mean 5/6, tau = 2.
    assert fednova(float32(1.0), float32(5 / 6), 2.0) == pytest.approx([1 - 5 / 3], abs=1e-6)


def test_fedadam_takes_two_steps_by_hand():
    # Step 1: w = 1, mean 1.2, delta 0.2. m = 0.02, v = 0.0004, sqrt v = 0.02.
    # w = 1 + 0.01 * 0.02 / 0.021 = 1.0095238
    zero = float32(0.0)
    new, first, second = fedadam(float32(1.0), float32(1.2), zero, zero, **KNOBS)
    assert new == pytest.approx([1.0095238], abs=1e-6)
    assert first == pytest.approx([0.02], rel=1e-5)
    assert second == pytest.approx([0.0004], rel=1e-5)

    # Step 2: mean 0.9095238, delta -0.1. m = 0.018 - 0.01 = 0.008, v = 0.000396 + 0.0001
    # = 0.000496, sqrt v = 0.0222711. w = 1.0095238 + 0.01 * 0.008 / 0.0232711 = 1.0129616
    last, first, second = fedadam(new, float32(0.9095238), first, second, **KNOBS)
    assert last == pytest.approx([1.0129616], abs=1e-6)
    assert first == pytest.approx([0.008], rel=1e-4)
    assert second == pytest.approx([0.000496], rel=1e-4)


@given(st.integers(0, 10_000))
def test_fedadam_follows_the_equations_coordinate_by_coordinate(seed):
    rng = np.random.default_rng(seed)
    received, mean, first = rng.normal(size=(3, 6)).astype(np.float32)
    second = rng.uniform(0, 1, 6).astype(np.float32)

    new, m, v = fedadam(received, mean, first, second, **KNOBS)

    for i in range(6):
        delta = float(mean[i]) - float(received[i])
        own_m = 0.9 * first[i] + 0.1 * delta
        own_v = 0.99 * second[i] + 0.01 * delta**2
        assert m[i] == pytest.approx(own_m, rel=1e-5, abs=1e-7)
        assert v[i] == pytest.approx(own_v, rel=1e-5)
        expected = received[i] + 0.01 * own_m / (own_v**0.5 + 0.001)
        assert new[i] == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_mean_that_did_not_move_leaves_the_weights_when_moments_are_zero():
    same, zero = float32(0.3, -2.0), float32(0.0, 0.0)

    new, first, second = fedadam(same, same, zero, zero, **KNOBS)

    assert new.tolist() == same.tolist()
    assert not first.any()
    assert not second.any()
    assert new.dtype == first.dtype == second.dtype == np.float32

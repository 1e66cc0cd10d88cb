import numpy as np

from raysim.core.relabeling import decide, project
from raysim.core.spectra import as_numpy


def test_projection_equals_the_slow_loop(xp):
    rng = np.random.default_rng(0)
    bases = np.stack([np.linalg.qr(rng.normal(size=(6, 2)))[0] for _ in range(4)])
    samples = rng.normal(size=(30, 6))

    found = project(xp.asarray(samples), xp.asarray(bases), np.zeros(30, dtype=int))

    expected = [int(np.argmax([np.linalg.norm(q @ q.T @ z) for q in bases])) for z in samples]
    assert found.tolist() == expected


def test_phase_two_worked_by_hand(xp):
    # Q of class 0 is the first axis, of class 1 the second: the longer coordinate wins.
    vectors = xp.asarray(np.eye(2).reshape(2, 2, 1))
    samples = xp.asarray([[2.0, -1.0], [1.0, -3.0]], dtype=xp.float64)

    found = project(samples, vectors, xp.asarray([1, 1]))

    assert as_numpy(found).tolist() == [0, 1]


def test_ties_keep_the_old_label_or_take_the_smallest_class(xp):
    # Classes 1 and 2 share the second axis; class 0 has the first.
    vectors = xp.asarray(np.array([[[1.0], [0.0]], [[0.0], [1.0]], [[0.0], [1.0]]]))
    samples = xp.asarray([[0.0, 1.0]] * 3 + [[0.0, 0.0]] * 2, dtype=xp.float64)

    found = project(samples, vectors, xp.asarray([2, 1, 0, 2, 7]))

    assert as_numpy(found).tolist() == [2, 1, 1, 2, 0]


def test_phase_one_needs_exactly_one_class_at_the_threshold():
    assert decide(np.array([0.2, 0.7, 0.6]), 0.7) == 1
    assert decide(np.array([0.7, 0.7, 0.6]), 0.7) is None
    assert decide(np.array([0.2, 0.3, 0.6]), 0.7) is None

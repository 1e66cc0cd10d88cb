"""FedRN's reliability of neighbours, worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.core.reliability import ensemble, most_reliable, reliability
from raysim.seeding import stream


def test_reliability_worked_by_hand():
    # Expertise 0.2, 0.6, 1.0 -> 0, 1/2, 1. Cosines with client 0: 1, 0, -1 -> 1, 1/2, 0.
    probes = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])

    found = reliability(np.array([0.2, 0.6, 1.0]), probes, 0, weight=0.6)

    assert found == pytest.approx([0.4, 0.6 * 0.5 + 0.4 * 0.5, 0.6])


def test_the_own_score_counts_full_similarity():
    # All probes alike: the others' similarity is the middle, the own one is 1.
    found = reliability(np.array([0.5, 0.5]), np.ones((2, 3)), 1, weight=0.4)

    assert found == pytest.approx([0.4 * 0.5 + 0.6 * 0.5, 0.4 * 0.5 + 0.6])


def test_reliability_is_the_slow_loop():
    rng = stream(0, "test.reliability")
    expertise, probes = rng.uniform(size=6), rng.normal(size=(6, 4))

    found = reliability(expertise, probes, 2, weight=0.3)

    cosine = [
        sum(a * b for a, b in zip(p, probes[2], strict=True))
        / (sum(a * a for a in p) ** 0.5 * sum(a * a for a in probes[2]) ** 0.5)
        for p in probes
    ]
    for n in range(6):
        skill = (expertise[n] - min(expertise)) / (max(expertise) - min(expertise))
        alike = (cosine[n] - min(cosine)) / (max(cosine) - min(cosine))
        assert found[n] == pytest.approx(0.3 * skill + 0.7 * alike)


def test_a_silent_probe_is_like_nobody():
    found = reliability(np.array([0.0, 1.0]), np.array([[1.0, 1.0], [0.0, 0.0]]), 0, weight=0.0)

    assert found == pytest.approx([1.0, 0.0])


def test_neighbours_are_the_highest_besides_oneself_and_ties_go_to_the_lower():
    assert most_reliable(np.array([0.9, 0.5, 0.7, 0.7]), 0, 2).tolist() == [2, 3]
    assert most_reliable(np.array([0.9, 0.5]), 1, 5).tolist() == [0]


def test_judges_count_by_their_scores():
    posteriors = np.array([[1.0, 0.0], [0.0, 1.0]])

    assert ensemble(posteriors, np.array([3.0, 1.0])) == pytest.approx([0.75, 0.25])
    assert ensemble(posteriors, np.zeros(2)) == pytest.approx([0.5, 0.5])

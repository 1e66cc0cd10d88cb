"""A thousand clients: figures stay small and true."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.report.blocks import block_mean
from raysim.report.build import make_report
from raysim.report.plots import draw

K, GROUPS, CLASSES = 1000, 4, 10


@pytest.fixture
def figures(write_run):
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.arange(K) % GROUPS)
    matrix = np.where(groups[:, None] == groups[None, :], 0.9, 0.2).astype(np.float32)
    np.fill_diagonal(matrix, 1.0)
    counts = rng.integers(0, 50, (K, CLASSES))
    noise = rng.uniform(0.1, 0.5, K)
    run = write_run(
        "fb_nll",
        0,
        [0.5, 0.6],
        groups=groups.tolist(),
        arrays={
            "similarity": matrix,
            **{f"labels_{name}": counts for name in ("true", "given", "corrected")},
            "client_noise_given": noise,
            "client_noise_corrected": noise / 2,
            "client_f_score": noise,
        },
        extra={"per_client": rng.uniform(0, 1, K).tolist()},
    )
    report = make_report([str(run)])
    return report, {figure.name: figure for figure in report.figures}, noise


def test_figures_of_a_thousand_clients_stay_small_and_true(figures):
    report, named, noise = figures
    heat, tree = named["similarity"].drawing, named["dendrogram"].drawing
    bars = named["client-noise"].drawing

    assert max(heat.values.shape) <= 300
    assert len(heat.row_names) == len(heat.bars) == heat.values.shape[0]
    middle = heat.values[np.ix_(np.array(heat.bars) == 1, np.array(heat.bars) == 2)]
    assert np.median(middle) == pytest.approx(0.2)
    assert len(tree.leaves) <= 100
    assert set(tree.groups) == set(range(GROUPS))
    assert 0.1 < tree.cut < 0.8
    assert named["similarity"].notes["silhouette"] == pytest.approx(0.7 / 0.8, abs=1e-3)
    assert len(bars.categories) <= 100
    first = np.sort(noise)[:10].mean()
    assert bars.series["before correction"][0] == pytest.approx(first)
    assert bars.series["after correction"][0] == pytest.approx(first / 2)
    assert all(p.values.shape[0] <= 300 for p in named["labels"].drawing.panels.values())
    for name in ("similarity", "dendrogram", "client-noise", "labels", "f-score"):
        assert len(draw(named[name], report.methods)) > 5_000


def test_block_means_by_hand():
    """Five values in at most two cells: means of three and of two."""
    found = block_mean(np.array([[1.0, 2.0, 3.0, 4.0, 8.0]]), 1, 2)

    assert found.tolist() == [[2.0, 6.0]]


def test_landmarks_show_every_client_against_them(write_run):
    groups = np.arange(12) % 3
    landmarks = np.array([0, 1, 2, 3, 4, 5])
    near = np.where(groups[:, None] == groups[landmarks][None, :], 0.8, 0.1)
    near[landmarks, np.arange(6)] = 1.0
    arrays = {"landmark_similarity": near, "landmarks": landmarks}
    run = write_run("fb_nll", 0, [0.5], groups=groups.tolist(), arrays=arrays)

    named = {figure.name: figure for figure in make_report([str(run)]).figures}

    assert named["similarity"].drawing.values.shape == (12, 6)
    assert sorted(named["dendrogram"].drawing.leaves) == [str(k) for k in range(6)]
    assert named["dendrogram"].drawing.cut == pytest.approx((0.2 + 0.9) / 2)

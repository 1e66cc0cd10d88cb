"""Pictures of Figure 3 and Figure 5, where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import sys
from unittest.mock import MagicMock

import pytest

from raysim.studies.reproduce.figures import _bars, draw_figure
from raysim.studies.reproduce.papers import TABLES

LOSSES = {"round": [1, 2], "test_loss_by_task": [[2.0, 1.9, 1.8], [1.0, 0.9, 0.8]]}


def loss_result(method: str, seed: int) -> dict:
    return {"cell": f"cifar10/m3/{method}", "seed": seed, "series": LOSSES}


@pytest.fixture
def figure(monkeypatch):
    """Stands in for matplotlib: pictures are not compared, curves are."""
    package = MagicMock()
    monkeypatch.setitem(sys.modules, "matplotlib", package)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", package.figure)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return package.figure.Figure.return_value


def test_figure_3_has_a_curve_per_method_and_task_of_the_first_seed(figure, tmp_path):
    results = [loss_result(m, seed) for m in ("optimum", "rcc_pfl") for seed in (1, 0)]

    path = draw_figure(TABLES["rcc-pfl/figure3"], results, tmp_path)

    calls = figure.subplots.return_value.plot.call_args_list
    assert path == tmp_path / "figure3.png"
    assert len(calls) == 2 * 3
    assert calls[0].args == ([1, 2], (2.0, 1.0))
    assert calls[-1].kwargs["label"] == "rcc_pfl, task 3"
    figure.savefig.assert_called_once()


def test_figure_5_has_relevance_against_eigenvectors(figure, tmp_path):
    series = {"eigenvectors": [1, 2], "mnist 0-3": [1.0, 0.9]}
    result = {"cell": "similarity", "seed": 0, "series": series}

    draw_figure(TABLES["fb-nll/figure5"], [result], tmp_path)

    (call,) = figure.subplots.return_value.plot.call_args_list
    assert call.args == ([1, 2], [1.0, 0.9])


def test_tables_and_machines_without_matplotlib_draw_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    table = TABLES["rcc-pfl/figure3"]
    assert draw_figure(TABLES["rcc-pfl/table2"], [loss_result("optimum", 0)], tmp_path) is None
    assert draw_figure(table, [loss_result("optimum", 0)], tmp_path) is None
    assert draw_figure(table, [], tmp_path) is None


def test_figures_of_accuracies_have_a_panel_per_value():
    result = {
        "cell": "cifar10/iid/mu0.8/clipfl_t30_m2",
        "seed": 0,
        "accuracy_percent": 50.0,
        "accuracy_last10": 0.4,
        "noisy_clients": {"precision": 0.9},
    }

    figure = _bars(TABLES["clipfl/figure9"], [result])

    widths = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    assert widths == [[pytest.approx(40.0)], [pytest.approx(90.0)]]

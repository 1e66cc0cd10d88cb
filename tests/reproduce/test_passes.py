"""FedRN's Table 8: formulas beside what rounds on the digits really send and compute."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.config import load_config
from raysim.data.world import DriverData
from raysim.studies.reproduce.papers import TABLES
from raysim.studies.reproduce.passes import (
    EPOCHS,
    METHODS,
    NEIGHBOURS,
    SETTING,
    counted_passes,
    measure,
)

PRINTED = {name: number.mean for name, number in TABLES["fedrn/table8"].printed.items()}


@pytest.fixture(scope="module")
def counted(_own_cache: None) -> dict[str, float]:
    return measure("fedrn/table8", 0)["values"]


@pytest.fixture(scope="module")
def federation(_own_cache: None) -> tuple[int, int]:
    """Number of clients and of their samples."""
    data = DriverData(load_config(SETTING).data, 0)
    return len(data.split.clients), sum(len(ids) for ids in data.split.clients)


def test_printed_costs_are_the_formulas_of_the_paper_for_our_run():
    """Messages down and up in models, passes forward and back, as Table 8 writes them."""
    e, k, m = EPOCHS, NEIGHBOURS, 2  # DivideMix has two views
    formulas = {
        "fedavg": (1, 1, e, e),
        "co_teaching": (2, 2, 2 * e, 2 * e),
        "joint_optimization": (1, 1, e, e),
        "selfie": (1, 1, 2 * e, e),
        "dividemix": (2, 2, (4 * m + 2) * e, 2 * e),
        "rfl": (1, 1, e, e),
        "fedrn": (k + 1, 1, e + 2 * k + 1, k + e),
    }

    assert formulas.keys() == METHODS.keys()
    assert {
        f"{row} {column}": number
        for row, numbers in formulas.items()
        for column, number in zip(("down M", "up M", "F", "B"), numbers, strict=True)
    } == PRINTED


@pytest.mark.parametrize("row", ["fedavg", "co_teaching", "joint_optimization", "rfl"])
def test_one_and_two_networks_cost_what_the_paper_says(counted, row):
    assert counted[f"{row} B"] == PRINTED[f"{row} B"]
    extra = 1 if row == "rfl" else 0  # its pseudo-labels: a pass that Table 8 leaves out
    assert counted[f"{row} F"] == PRINTED[f"{row} F"] + extra
    for way in ("down M", "up M"):
        # Robust FL's centroids are a few numbers beside the model.
        assert counted[f"{row} {way}"] == pytest.approx(PRINTED[f"{row} {way}"], abs=0.6)
        assert (counted[f"{row} {way}"] == PRINTED[f"{row} {way}"]) == (row != "rfl")


def test_fedrn_sends_its_neighbours_and_a_few_numbers(counted, federation):
    params = model_numbers()
    assert counted["fedrn down M"] == NEIGHBOURS + 1
    assert counted["fedrn up M"] == pytest.approx(1 + (10 + 1) / params, abs=1e-4)  # p and Acc


def test_fedrn_passes_differ_from_the_formula_by_what_it_leaves_out(counted, federation):
    clients, samples = federation
    forward, backward = counted["fedrn F"], counted["fedrn B"]

    # What is trained on goes forward and back, so F - B is the k + 1 judgements, the accuracy on
    # the own samples, which the paper neglects, and one probe image per client.
    assert forward - backward == pytest.approx(NEIGHBOURS + 2 + clients / samples, abs=1e-3)
    assert 0 < backward < PRINTED["fedrn B"]  # only samples taken for clean


def test_selfie_forwards_everything_and_then_what_it_keeps(counted):
    assert counted["selfie F"] - counted["selfie B"] == pytest.approx(5.0)
    assert counted["selfie B"] < PRINTED["selfie B"]


def test_dividemix_is_the_dearest(counted):
    assert counted["dividemix down M"] == counted["dividemix up M"] == 2
    assert counted["dividemix F"] == max(x for name, x in counted.items() if name.endswith(" F"))


def test_passes_are_images_and_gradients():
    import torch

    from raysim.models.zoo import Logistic

    network = Logistic().build((8, 8, 1), 10)
    with counted_passes() as passes:
        network(torch.zeros(3, 1, 8, 8)).sum().backward()
        with torch.no_grad():
            network(torch.zeros(5, 1, 8, 8))
    network(torch.zeros(7, 1, 8, 8))

    assert (passes.forward, passes.backward) == (8, 3)


def model_numbers() -> int:
    """Numbers of small_cnn with 4 and 8 channels, statistics of batch norm included."""
    convolutions = 4 * 9 * 1 + 8 * 9 * 4  # batch norm has their biases
    norms = 2 * (4 + 8) + 2 * (4 + 8)
    return convolutions + norms + int(np.prod((10, 8 * 2 * 2))) + 10

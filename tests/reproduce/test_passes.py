"""FedRN's Table 8: formulas beside what rounds on the digits really send and compute."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.config import load_config
from raysim.data.world import DriverData
from raysim.studies.reproduce.passes import (
    METHODS,
    NEIGHBOURS,
    SETTING,
    counted_passes,
    measure,
    printed_costs,
)
from raysim.studies.reproduce.recipes import TARGETS


@pytest.fixture(scope="module")
def counted(_own_cache: None) -> dict[str, float]:
    return measure(0)


@pytest.fixture(scope="module")
def federation(_own_cache: None) -> tuple[int, int]:
    """Number of clients and of their samples."""
    data = DriverData(load_config(SETTING).data, 0)
    return len(data.split.clients), sum(len(ids) for ids in data.split.clients)


def test_formulas_are_those_of_the_paper():
    costs = printed_costs(epochs=5, neighbours=1, views=2)

    assert [costs[f"fedrn {x}"] for x in ("down M", "up M", "F", "B")] == [2, 1, 8, 6]
    assert [costs[f"co_teaching {x}"] for x in ("down M", "up M", "F", "B")] == [2, 2, 10, 10]
    assert [costs[f"dividemix {x}"] for x in ("F", "B")] == [50, 10]
    assert TARGETS["fedrn/table8"].printed["fedrn F"].mean == 5 + 2 * 2 + 1
    assert {name.split()[0] for name in costs} == METHODS.keys()


@pytest.mark.parametrize("row", ["fedavg", "co_teaching", "joint_optimization", "rfl"])
def test_one_and_two_networks_cost_what_the_paper_says(counted, row):
    printed = printed_costs()

    assert counted[f"{row} B"] == printed[f"{row} B"]
    extra = 1 if row == "rfl" else 0  # its pseudo-labels: a pass that Table 8 leaves out
    assert counted[f"{row} F"] == printed[f"{row} F"] + extra
    for way in ("down M", "up M"):
        # Robust FL's centroids are a few numbers beside the model.
        assert counted[f"{row} {way}"] == pytest.approx(printed[f"{row} {way}"], abs=0.6)
        assert (counted[f"{row} {way}"] == printed[f"{row} {way}"]) == (row != "rfl")


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
    assert 0 < backward < printed_costs()["fedrn B"]  # only samples taken for clean


def test_selfie_forwards_everything_and_then_what_it_keeps(counted):
    assert counted["selfie F"] - counted["selfie B"] == pytest.approx(5.0)
    assert counted["selfie B"] < printed_costs()["selfie B"]


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

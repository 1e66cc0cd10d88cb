"""Blocks of clients: who sits where, so that company does not change bits."""

import numpy as np
import pytest

from raysim.core.similarity import (
    pair_products,
    quadratic_energies,
    quadratic_energies_turned,
)
from raysim.seeding import stream
from raysim.steps import layouts
from raysim.steps.layouts import BLOCK, Layout, block_layout, equal_places
from raysim.steps.relevance import _seated

SHAPE = {"block": BLOCK, "num_leading": 2, "dimension": 24, "num_columns": 40}


@pytest.fixture(autouse=True)
def _no_memory():
    block_layout.cache_clear()
    yield
    block_layout.cache_clear()


def spoiled(places):
    """Energies as on a machine that rounds otherwise at some places of a block."""

    def energies(*arguments):
        found = np.repeat(quadratic_energies(*arguments)[:1], BLOCK, axis=0)
        found[list(places)] = np.nextafter(found[list(places)], np.float32(np.inf))
        return found

    return energies


def test_both_ways_round_give_the_same_numbers():
    rng = stream(0, "test.layouts")
    leading, packed, columns = (
        rng.normal(size=shape).astype(np.float32) for shape in ((6, 2, 24), (6, 300), (24, 10))
    )
    arguments = (leading, packed, columns, pair_products(columns))

    turned = quadratic_energies_turned(*arguments)

    np.testing.assert_allclose(turned, quadratic_energies(*arguments), rtol=1e-4, atol=1e-4)


def test_equal_forms_get_equal_bits_at_the_places_found():
    layout = block_layout(*SHAPE.values(), "numpy")
    rng = stream(1, "test.layouts")
    leading, packed = rng.normal(size=(2, 24)), rng.normal(size=300)
    columns = rng.normal(size=(24, 40)).astype(np.float32)
    forms = [np.repeat(one[None].astype(np.float32), BLOCK, 0) for one in (leading, packed)]

    found = layout.energies(*forms, columns, pair_products(columns))[list(layout.places)]

    assert len(found) >= BLOCK // 4
    assert (found == found[0]).all()


def test_places_that_round_otherwise_stay_empty():
    odd = {0, 7, 100}

    found = set(equal_places(spoiled(odd), **SHAPE, arrays="numpy"))

    assert found == set(range(BLOCK)) - odd


def test_the_way_round_with_more_places_is_taken(monkeypatch):
    sizes = {"plain": 100, "turned": 240}
    monkeypatch.setattr(layouts, "quadratic_energies", "plain")
    monkeypatch.setattr(layouts, "quadratic_energies_turned", "turned")
    monkeypatch.setattr(layouts, "equal_places", lambda how, *_: tuple(range(sizes[how])))

    assert block_layout(1000, 1, 2, 3, "numpy").energies == "turned"
    sizes["plain"] = BLOCK
    block_layout.cache_clear()
    assert block_layout(1000, 1, 2, 3, "numpy").energies == "plain"


@pytest.mark.parametrize(("clients", "block"), [(1, 16), (16, 16), (17, 32), (5000, BLOCK)])
def test_blocks_are_as_large_as_the_run_needs(clients, block):
    layout = block_layout(clients, 1, 3, 4, "numpy")

    assert layout.block == block
    assert set(layout.places) <= set(range(block))


def test_clients_sit_at_the_places_of_as_many_blocks_as_they_need():
    seats = _seated([5, 6, 7], Layout(quadratic_energies, block=4, places=(1, 3)))

    assert seats == (None, 5, None, 6, None, 7, None, None)

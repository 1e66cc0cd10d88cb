"""What a run reserves for its actors: bundles that fill GPUs evenly, now and later."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from raysim.errors import EnvironmentNotFit
from raysim.runtime.placement import Node, plan
from raysim.settings import RuntimeSettings, ShareSettings


def asked(actors, cpus=1.0, gpus=0.0):
    return RuntimeSettings(actors=actors, per_actor=ShareSettings(cpus=cpus, gpus=gpus))


def refusal(nodes, runtime):
    with pytest.raises(EnvironmentNotFit) as caught:
        plan([1] * 100, nodes, runtime)
    return str(caught.value)


# ---- what is reserved ------------------------------------------------------------------------


def laid_out(clients, nodes, runtime):
    layout = plan([1] * clients, nodes, runtime)
    return layout, Counter(layout.seats)


def test_slices_are_dealt_to_all_gpus_evenly():
    layout, seats = laid_out(40, [Node("a", 16, 4, "a")], asked(16, 1, 0.1))

    assert layout.bundles == ({"CPU": 4.0, "GPU": 1.0},) * 4
    assert seats == {0: 4, 1: 4, 2: 4, 3: 4}


def test_a_node_that_needs_one_gpu_reserves_the_part_that_is_used():
    layout, seats = laid_out(8, [Node("a", 4, 1, "a"), Node("b", 4, 1, "b")], asked(6, 1, 0.25))

    assert layout.bundles == ({"CPU": 3.0, "GPU": 0.75},) * 2
    assert seats == {0: 3, 1: 3}


def test_cpu_actors_and_whole_gpus_have_a_bundle_each():
    assert laid_out(3, [Node("a", 4, 0)], asked(3, 0.5))[0].bundles == ({"CPU": 0.5},) * 3
    both = laid_out(2, [Node("a", 4, 4)], asked(2, 1, 2))[0].bundles
    assert both == ({"CPU": 1.0, "GPU": 2.0},) * 2


def test_one_actor_per_client_shares_cpus_and_gpus_evenly():
    layout, seats = laid_out(40, [Node("a", 16, 4, "a")], asked("per_client", 1, "auto"))

    assert (layout.runtime.per_actor.cpus, layout.runtime.per_actor.gpus) == (0.4, 0.1)
    assert len(layout.cohorts) == 40
    assert set(seats.values()) == {10}


def test_one_actor_per_client_takes_no_more_than_its_share():
    layout, _ = laid_out(3, [Node("a", 64, 0, "a")], asked("per_client", 2))

    assert layout.runtime.per_actor.cpus == 2


@pytest.mark.parametrize(("clients", "gpus"), [(2, 1.0), (4, 1.0), (5, 0.5), (13, 0.25)])
def test_gpus_are_shared_among_as_many_actors_as_there_are(clients, gpus):
    layout, _ = laid_out(clients, [Node("a", 16, 4, "a")], asked("auto", 1, "auto"))

    assert layout.runtime.per_actor.gpus == gpus


def test_gpus_auto_is_none_where_there_is_none():
    assert (
        laid_out(4, [Node("a", 16, 0, "a")], asked("auto", 1, "auto"))[0].bundles
        == ({"CPU": 1.0},) * 4
    )


def test_one_actor_per_client_that_cannot_fit_is_refused_with_the_arithmetic():
    said = refusal([Node("a", 0.05, 0)], asked("per_client", 1))

    assert "asked for 100 client actors" in said
    assert "room for 0 exists (a: 0.05 CPUs" in said  # even at 0.001 CPUs only 50 would fit


# ---- what comes later ------------------------------------------------------------------------


def test_a_range_starts_with_what_is_there():
    assert len(plan([1] * 20, [Node("a", 4, 0)], asked("2..8")).cohorts) == 4
    assert len(plan([1] * 20, [Node("a", 40, 0)], asked("2..8")).cohorts) == 8
    assert len(plan([1] * 5, [Node("a", 40, 0)], asked("2..8")).cohorts) == 5


def test_a_range_that_begins_above_the_room_is_refused():
    assert "asked for 6 client actors" in refusal([Node("a", 4, 0)], asked("6..8"))


def test_what_the_autoscaler_may_bring_counts_as_room():
    small = [Node("a", 2, 0, "a")]

    fixed = plan([1] * 20, small, replace(asked(6), autoscale=8))
    every = plan([1] * 20, small, replace(asked("auto"), autoscale=8))
    some = plan([1] * 20, small, replace(asked("1..6"), autoscale=8))

    assert (len(fixed.bundles), len(every.bundles)) == (6, 8)
    assert (len(some.bundles), len(some.more)) == (2, 4)
    said = refusal(small, replace(asked(9), autoscale=8))
    assert "room for 8 exists" in said


def test_gpus_that_the_autoscaler_brings_are_asked_for_whole():
    layout = plan([1] * 8, [Node("head", 0, 0, "h")], replace(asked(8, 1, 0.25), autoscale=8))

    assert layout.bundles == ({"CPU": 4.0, "GPU": 1.0},) * 2

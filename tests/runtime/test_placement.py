"""Which actors fit, who hosts whom, and what the refusal advises."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from raysim.errors import ConfigError, EnvironmentNotFit
from raysim.runtime.placement import (
    Node,
    balance,
    describe_plan,
    near,
    plan,
    share_out,
    spread,
)
from raysim.settings import RuntimeSettings, SettingError, ShareSettings


def share(cpus: float = 1.0, gpus: float = 0.0) -> ShareSettings:
    return ShareSettings(cpus=cpus, gpus=gpus)


def asked(actors="auto", cpus: float = 1.0, gpus: float = 0.0) -> RuntimeSettings:
    return RuntimeSettings(actors=actors, per_actor=share(cpus, gpus))


# ---- room ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "gpus", "wanted", "slots"),
    [
        (8, 0, share(1), 8),
        (8, 0, share(3), 2),
        (1, 0, share(0.1), 10),  # 1 / 0.1 is exact, 3 * 0.1 is not
        (0.3, 0, share(0.1), 3),
        (8, 3, share(1, 0.6), 3),  # a slice lives on one GPU: not floor(3 / 0.6) = 5
        (8, 1, share(1, 0.25), 4),
        (8, 1, share(1, 0.1), 8),  # ten slices, but eight CPUs
        (8, 3, share(1, 1), 3),
        (8, 5, share(1, 2), 2),
        (8, 0, share(1, 0.25), 0),
        (8, 0.5, share(1, 0.25), 0),  # half a GPU is no GPU
    ],
)
def test_slots_of_a_node(cpus, gpus, wanted, slots):
    assert Node("a", cpus, gpus).slots(wanted) == slots


def test_three_gpus_hold_three_actors_of_six_tenths():
    cohorts = plan([1] * 9, [Node("a", 16, 3)], asked("auto", gpus=0.6)).cohorts

    assert len(cohorts) == 3


# ---- how many --------------------------------------------------------------------------------


def test_auto_takes_all_the_room():
    assert len(plan([5] * 20, [Node("a", 4, 0), Node("b", 2, 0)], asked()).cohorts) == 6


def test_auto_takes_at_most_one_actor_per_client():
    assert plan([5, 5, 5], [Node("a", 64, 0)], asked()).cohorts == ((0,), (1,), (2,))


def test_a_number_is_taken_as_it_is():
    assert len(plan([5] * 20, [Node("a", 8, 0)], asked(3)).cohorts) == 3


def test_more_actors_than_clients_are_refused():
    with pytest.raises(EnvironmentNotFit, match=r"runtime\.actors is 4.*only 3 clients.*to 3"):
        plan([5, 5, 5], [Node("a", 64, 0)], asked(4))


# ---- who hosts whom --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 13])
def test_every_client_is_in_exactly_one_cohort(count):
    sizes = [3, 0, 8, 1, 1, 50, 2, 9, 9, 4, 6, 0, 7]

    cohorts = balance(sizes, count)

    assert sorted(itertools.chain(*cohorts)) == list(range(13))
    assert len(cohorts) == count
    assert all(cohorts)  # no actor without a client
    assert all(list(cohort) == sorted(cohort) for cohort in cohorts)


def test_the_largest_clients_are_spread_first():
    # 9 | 8, then 7 to the 8's actor (15), 6 to the 9's (15), 5 to the first of equals.
    assert balance([5, 6, 7, 8, 9], 2) == ((0, 1, 4), (2, 3))


def test_cohorts_differ_by_at_most_the_largest_client():
    sizes = [(37 * k) % 101 for k in range(60)]

    loads = [sum(sizes[k] for k in cohort) for cohort in balance(sizes, 7)]

    assert max(loads) - min(loads) <= max(sizes)


def test_clients_of_one_size_stay_beside_their_neighbours():
    assert balance([6] * 8, 2) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_clients_without_samples_are_spread_too():
    assert [len(cohort) for cohort in balance([0] * 9, 3)] == [3, 3, 3]


# ---- refusals --------------------------------------------------------------------------------


def refusal(nodes, runtime, clients=100) -> str:
    with pytest.raises(EnvironmentNotFit) as caught:
        plan([1] * clients, nodes, runtime)
    return str(caught.value)


def test_a_refusal_says_what_was_asked_what_exists_and_what_to_lower():
    said = refusal([Node("10.0.0.1", 4, 1), Node("10.0.0.2", 2, 0)], asked(9, 1, 0.5))

    assert "asked for 9 client actors of 1 CPUs and 0.5 GPUs each" in said
    assert "room for 2 exists" in said
    assert "10.0.0.1: 4 CPUs, 1 GPUs; 10.0.0.2: 2 CPUs, 0 GPUs" in said
    assert "lower runtime.actors to 2" in said


def test_gpus_where_there_are_none_are_refused_with_zero_as_advice():
    said = refusal([Node("a", 4, 0)], asked("auto", 1, 0.25))

    assert "room for 0 exists" in said
    assert "set runtime.per_actor.gpus to 0 (no GPU here)" in said
    assert "lower runtime.actors" not in said


def test_a_cluster_without_nodes_is_refused():
    assert "no node" in refusal([], asked())


CLUSTERS = [
    [Node("a", 2, 0)],
    [Node("a", 16, 3)],
    [Node("a", 2, 8)],
    [Node("a", 1, 0), Node("b", 1, 0)],
    [Node("a", 1, 0), Node("b", 5, 0)],
    [Node("a", 8, 3), Node("b", 8, 3)],
    [Node("a", 4, 1), Node("b", 2, 0)],
]
REQUESTS = [
    asked(5, 1, 0.6),
    asked(4, 1, 0.5),
    asked("auto", 2),
    asked("auto", 24),
    asked(4, 2),
    asked(3, 1, 2),
    asked(7, 3, 0.7),
    asked(90, 0.5, 0.1),
]


@pytest.mark.parametrize(("nodes", "runtime"), list(itertools.product(CLUSTERS, REQUESTS)))
def test_whoever_follows_the_advice_gets_a_plan(nodes, runtime):
    try:
        plan([1] * 100, nodes, runtime)
    except EnvironmentNotFit as wrong:
        advice = str(wrong).rsplit("; ", 1)[1]
    else:
        return

    for way in advice.split(" or "):
        assert plan([1] * 100, nodes, followed(runtime, way)).cohorts, way


def followed(runtime: RuntimeSettings, way: str) -> RuntimeSettings:
    """The settings after one piece of advice; it must name a setting and a smaller number."""
    changes = re.findall(r"runtime\.([a-z_.]+) to ([\d.]+)", way)
    assert changes, way
    for setting, number in changes:
        if setting == "actors":
            runtime = replace(runtime, actors=int(number))
            continue
        name = setting.removeprefix("per_actor.")
        assert float(number) < getattr(runtime.per_actor, name), way
        runtime = replace(runtime, per_actor=replace(runtime.per_actor, **{name: float(number)}))
    return runtime


# ---- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: share(-1), "cpus must not be negative, got -1"),
        (lambda: share(0), "cpus must be at least 0.001, got 0"),
        (lambda: share(1, -0.5), "gpus must not be negative"),
        (lambda: share(1, 1.5), "gpus above 1 must be a whole number of GPUs, got 1.5"),
        (lambda: share(1, 0.00001), "gpus cannot be finer than 0.0001"),
        (lambda: share(1.00001), "cpus cannot be finer than 0.0001"),
        (lambda: share(float("inf")), "cpus must be finite"),
        (lambda: asked(0), "a range like 2..8 or at least 1, got 0"),
        (lambda: asked("5..2"), "actors must be auto, per_client, a range like 2..8"),
        (lambda: asked("2.."), "actors must be auto, per_client, a range like 2..8"),
        (lambda: asked("all"), "actors must be auto, per_client, a range like 2..8"),
        (lambda: RuntimeSettings(servers=0), "servers must be at least 1"),
        (lambda: RuntimeSettings(autoscale=0), "autoscale must be at least 1"),
        (lambda: RuntimeSettings(queue_timeout_s=0), "queue_timeout_s must be positive"),
        (lambda: RuntimeSettings(max_restarts=-1), "max_restarts must not be negative"),
        (lambda: RuntimeSettings(start_timeout_s=0), "start_timeout_s must be positive"),
        (lambda: RuntimeSettings(kind="local", address="auto"), "address has no meaning"),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(SettingError, match=re.escape(said)):
        make()


def test_common_shares_are_accepted():
    assert share(0.001, 0.25).gpus == 0.25
    assert share(1, 1 / 4 + 1 / 2).gpus == 0.75
    assert share(1, 4).gpus == 4


# ---- which node ------------------------------------------------------------------------------


def named(nodes):
    return [node.name for node in nodes]


HEAD = Node("head", 0, 0, "h", is_driver=True, is_head=True)
SMALL, LARGE = Node("small", 2, 0, "s"), Node("large", 8, 0, "l")


def test_two_actors_on_two_nodes_sit_apart():
    twins = [Node("same", 4, 0, "b"), Node("same", 4, 0, "a")]  # one machine, two raylets

    assert [node.id for node in spread(twins, share(0.5), 2)] == ["a", "b"]


@pytest.mark.parametrize(
    ("count", "large", "small"), [(1, 1, 0), (4, 4, 0), (5, 4, 1), (9, 8, 1), (10, 8, 2)]
)
def test_nodes_of_different_sizes_are_filled_to_the_same_part(count, large, small):
    homes = named(spread([SMALL, LARGE], share(1), count))

    assert (homes.count("large"), homes.count("small")) == (large, small)


def test_no_node_gets_more_than_it_holds():
    nodes = [Node("a", 3, 1, "a"), Node("b", 16, 2, "b"), Node("c", 8, 0, "c")]
    homes = named(plan([1] * 40, nodes, asked("auto", gpus=0.25)).homes)

    assert (homes.count("a"), homes.count("b"), homes.count("c")) == (3, 8, 0)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ([{"s": 1, "l": 5}, {"s": 4, "l": 2}], ["large", "small"]),
        ([{"h": 9}], ["large"]),  # nothing goes to the head
        ([{"l": 1}] * 6, ["large"] * 4 + ["small"] * 2),  # at most four on a node
        ([{"l": 1}] * 10, ["large"] * 4 + ["small"] * 4 + ["large", "small"]),
    ],
)
def test_servers_are_near_most_of_their_clients_and_not_on_the_head(clients, expected):
    assert sorted(named(near([SMALL, HEAD, LARGE], clients))) == sorted(expected)


def test_a_head_alone_takes_the_servers():
    assert named(near([HEAD], [{}, {}])) == ["head", "head"]


# ---- sharing out a round ---------------------------------------------------------------------


def test_a_lopsided_round_is_shared_out_evenly():
    place = share_out({k: int(k >= 2) for k in range(10)}, dict.fromkeys(range(10), 600), range(2))

    assert sorted(place) == list(range(10))
    assert list(place.values()).count(0) == 5


def test_an_even_round_stays_at_home():
    home = {k: k % 3 for k in range(9)}

    assert share_out(home, dict.fromkeys(range(9), 7), range(3)) == home


@pytest.mark.parametrize("seed", range(20))
def test_sharing_out_never_lengthens_a_round(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    sizes = {k: int(rng.integers(0, 100)) for k in range(count)}
    home = {k: int(rng.integers(0, 4)) for k in range(count)}

    def longest(place):
        return max(sum(max(sizes[k], 1) for k in place if place[k] == a) for a in range(4))

    place = share_out(home, sizes, range(4))
    assert place.keys() == home.keys()
    assert longest(place) <= longest(home)
    even = sum(max(n, 1) for n in sizes.values()) / 4
    assert longest(place) <= max(even + max(sizes.values()), max(sizes.values()))


def test_one_client_does_not_move():
    assert share_out({7: 1}, {7: 500}, range(3)) == {7: 1}


# ---- deadline and quorum ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quorum": 0.5}, "needs round_deadline_s"),
        ({"round_deadline_s": 5.0}, "must be below 1 with round_deadline_s"),
        ({"round_deadline_s": 0.0, "quorum": 0.5}, "must be positive"),
        ({"quorum": 0.0}, r"must be in \(0, 1\]"),
    ],
)
def test_a_deadline_and_a_quorum_belong_together(options, says):
    with pytest.raises(SettingError, match=says):
        RuntimeSettings(**options)


# ---- a plan to look at -----------------------------------------------------------------------


def test_a_plan_names_every_node_with_its_actors_clients_and_servers():
    layout = describe_plan([5, 1, 1, 1, 8], [HEAD, SMALL, LARGE], replace(asked(5), servers=2))

    rows = {node["name"]: node for node in layout["nodes"]}
    assert (layout["clients"], layout["servers"], list(rows)) == (5, 2, ["head", "small", "large"])
    assert rows["head"]["actors"] == []
    assert (rows["head"]["servers"], rows["head"]["coordinator"]) == (0, True)
    assert (rows["large"]["servers"], rows["small"]["servers"]) == (2, 0)
    actors = [*rows["small"]["actors"], *rows["large"]["actors"]]
    assert sum(actor["clients"] for actor in actors) == 5
    assert sum(actor["samples"] for actor in actors) == 16
    assert len(actors) == 5


def test_two_raylets_of_one_machine_are_two_rows_of_a_plan():
    twins = [Node("same", 2, 0, "b"), Node("same", 2, 0, "a")]

    layout = describe_plan([1] * 4, twins, asked("auto"))

    assert [len(node["actors"]) for node in layout["nodes"]] == [2, 2]


# ---- deadlines ---------------------------------------------------------------------------------

HURRY = {"round_deadline_s": 5.0, "quorum": 0.5}


@pytest.mark.parametrize("stateless", [True, None])
def test_a_deadline_is_for_actors_and_methods_that_can_leave_clients_behind(stateless):
    for kind in ("ray", "auto"):
        RuntimeSettings(kind=kind, **HURRY).check_deadline("single", stateless)
    RuntimeSettings(kind="local").check_deadline("selfie", False)

    with pytest.raises(ConfigError, match=r"round_deadline_s is 5.0, but runtime.kind is local"):
        RuntimeSettings(kind="local", **HURRY).check_deadline("single", stateless)


def test_a_deadline_that_a_method_cannot_honour_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"clients of selfie keep something.*drop runtime.round_"):
        RuntimeSettings(kind="auto", **HURRY).check_deadline("selfie", False)

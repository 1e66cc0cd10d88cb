"""Actors keep to their GPU slice or CPU share: fake GPUs, real raylets."""

from __future__ import annotations

from collections import Counter

import pytest

pytestmark = pytest.mark.cluster

LOOK = """
import time
from raysim.runtime.ray.federation import RayFederation


def seen_by_client(client, memory, arguments):
    return memory, os.environ.get("CUDA_VISIBLE_DEVICES")


def seen_by_server():
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def pin(clients, groups=2, **runtime):
    partition = {"kind": "tasks", "clients": clients, "groups": groups}
    setup = config("unused", f"data.partition={json.dumps(partition)}", **runtime)
    data = DriverData(setup.data, setup.seed)
    spec = data.spec()  # no module to warm up: forty processes with torch take minutes to start
    federation = RayFederation(data.client_records(), spec, setup.runtime, name=setup.name)
    facts = {
        "rows": federation.describe(),
        "share": [federation.runtime.per_actor.cpus, federation.runtime.per_actor.gpus],
        "clients": list(federation.map(seen_by_client).values()),
        "server": federation.serve(seen_by_server),
    }
    federation.close()
    free_cpus(ray.cluster_resources()["CPU"])  # the next one finds all nodes empty
    return facts


def free_cpus(expected):
    for _ in range(300):  # Ray frees the resources of ended actors a little later
        free = ray.available_resources().get("CPU")
        if free == expected:
            break
        time.sleep(0.1)
    return free


def refusal(**runtime):
    try:
        pin(12, 3, **runtime)
    except RaysimError as wrong:
        return [wrong.exit_code, str(wrong)]
"""


@pytest.fixture(scope="module")
def two_nodes(in_cluster):
    """What actors see on two nodes with four CPUs and one GPU each, whose hosts show device 0."""
    node = {"num_cpus": 4, "num_gpus": 1}
    script = """
    tell(
        slices=pin(8, actors=8, per_actor={"cpus": 1, "gpus": 0.25}),
        shares=pin(8, actors=2, per_actor={"cpus": 0.5, "gpus": 0}),
    )
    """
    return in_cluster([node, node], LOOK + unindent(script), CUDA_VISIBLE_DEVICES="0")


def unindent(script):
    import textwrap

    return textwrap.dedent(script)


def clients_of(facts):
    return [row for row in facts["rows"] if row["role"] == "clients"]


def test_quarter_slices_fill_both_gpus_four_by_four(two_nodes):
    rows = clients_of(two_nodes["slices"])

    assert sorted(Counter(row["node_id"] for row in rows).values()) == [4, 4]
    assert all(row["gpu_ids"] == ["0"] for row in rows)
    assert {row["share"] for row in rows} == {"1 CPU 0.25 GPU"}
    assert [row["clients"] for row in rows] == [1] * 8


def test_a_client_on_a_slice_sees_its_gpu(two_nodes):
    assert two_nodes["slices"]["clients"] == ["0"] * 8


def test_a_client_without_a_gpu_sees_none_of_the_hosts(two_nodes):
    assert two_nodes["shares"]["clients"] == [""] * 8
    assert all(row["gpu_ids"] == [] for row in clients_of(two_nodes["shares"]))


def test_cpu_actors_are_spread_over_the_nodes(two_nodes):
    assert len({row["node_id"] for row in clients_of(two_nodes["shares"])}) == 2


def test_a_parameter_server_sees_no_gpu(two_nodes):
    assert (two_nodes["slices"]["server"], two_nodes["shares"]["server"]) == ("", "")


@pytest.fixture(scope="module")
def four_gpus(in_cluster):
    """Sixteen slices, and an actor for each of forty clients, on a node with four GPUs."""
    script = """
    tell(
        sixteen=pin(16, actors=16, per_actor={"cpus": 0.5, "gpus": 0.1}),
        forty=pin(40, actors="per_client", per_actor={"cpus": 1, "gpus": "auto"}),
        none=pin(4, actors="per_client", per_actor={"cpus": 1}),
        refused=refusal(actors="per_client", per_actor={"cpus": 1, "gpus": 1}),
        groups=[g["state"] for g in ray.util.placement_group_table().values()],
    )
    """
    return in_cluster([{"num_cpus": 16, "num_gpus": 4}], LOOK + unindent(script))


@pytest.mark.parametrize(("case", "on_one"), [("sixteen", 4), ("forty", 10)])
def test_every_gpu_gets_as_many_actors(four_gpus, case, on_one):
    gpus = Counter(gpu for row in clients_of(four_gpus[case]) for gpu in row["gpu_ids"])

    assert gpus == {"0": on_one, "1": on_one, "2": on_one, "3": on_one}


def test_one_actor_per_client_shares_what_is_there_and_is_named_after_its_client(four_gpus):
    rows = clients_of(four_gpus["forty"])

    assert four_gpus["forty"]["share"] == [0.4, 0.1]
    assert sorted(row["name"] for row in rows) == sorted(
        f"quickstart/client-{k}" for k in range(40)
    )


def test_no_gpu_is_touched_unless_asked_for(four_gpus):
    assert all(row["gpu_ids"] == [] for row in clients_of(four_gpus["none"]))


def test_one_actor_per_client_that_does_not_fit_is_refused_with_the_numbers(four_gpus):
    code, text = four_gpus["refused"]

    assert code == 3
    assert "asked for 12 client actors of 1 CPUs and 1 GPUs" in text
    assert "room for 4 exists" in text


def test_ended_runs_leave_no_placement_group(four_gpus):
    assert set(four_gpus["groups"]) == {"REMOVED"}


@pytest.fixture(scope="module")
def two_gpus(in_cluster):
    """One node with four CPUs and two GPUs: halves, and what does not fit."""
    script = """
    tell(
        halves=pin(4, actors=4, per_actor={"cpus": 1, "gpus": 0.5}),
        gpus=refusal(actors=5, per_actor={"cpus": 0.5, "gpus": 0.5}),
        uneven=refusal(actors=3, per_actor={"cpus": 1, "gpus": 0.6}),
        whole=refusal(per_actor={"cpus": 1, "gpus": 3}),
        cpus=refusal(actors=5),
        share=refusal(per_actor={"cpus": 5}),
        free=free_cpus(4.0),
    )
    """
    return in_cluster([{"num_cpus": 4, "num_gpus": 2}], LOOK + unindent(script))


def test_half_slices_sit_two_on_each_gpu(two_gpus):
    assert sorted(two_gpus["halves"]["clients"]) == ["0", "0", "1", "1"]


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("gpus", ["asked for 5", "0.5 GPUs", "room for 4", "4 CPUs, 2 GPUs", "to 4"]),
        ("uneven", ["asked for 3", "0.6 GPUs", "room for 2", "lower runtime.per_actor.gpus"]),
        ("whole", ["3 GPUs each", "room for 0", "4 CPUs, 2 GPUs", "lower runtime.per_actor.gpus"]),
        ("cpus", ["asked for 5", "1 CPUs", "room for 4", "lower runtime.actors to 4"]),
        ("share", ["5 CPUs", "room for 0", "lower runtime.per_actor.cpus to 4"]),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(two_gpus, case, parts):
    code, text = two_gpus[case]

    assert code == 3
    assert [part for part in parts if part not in text] == [], text


def test_a_refusal_leaves_no_actor_behind(two_gpus):
    assert two_gpus["free"] == 4.0

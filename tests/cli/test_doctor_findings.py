"""``raysim doctor --cluster``: what is made of the nodes' answers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ray.exceptions import NodeDiedError

from raysim.cli.doctor_cluster import judge, judge_storage
from raysim.cli.main import main
from raysim.runtime.placement import Node
from raysim.runtime.ray import inspection
from raysim.runtime.ray.inspection import NodeReport

FACTS = {
    "versions": {"python": "3.11.9", "raysim": "0.1.0", "ray": "2.60.0", "torch": "2.6"},
    "cuda_devices": 0,
    "cupy": False,
    "free_bytes": 10**11,
    "fingerprint": "abc",
}


def report(name: str = "10.0.0.1", *, gpus: float = 0.0, **facts: object) -> NodeReport:
    node = Node(name=name, cpus=4.0, gpus=gpus, id=f"id-{name}")
    return NodeReport(node, {**FACTS, **facts}, round_trip_s=0.01)


def failed(reports) -> dict[str, str]:
    return {f.what: f.says for f in judge(reports, FACTS) if f.ok is False}


def test_equal_nodes_are_fit_and_each_is_named():
    reports = [report("10.0.0.1"), report("10.0.0.2")]

    findings = judge(reports, FACTS)

    assert all(f.ok for f in findings)
    assert [f.what for f in findings] == ["node", "node", "versions", "numerics", "clock"]
    assert "10.0.0.2" in findings[1].says


@pytest.mark.parametrize(
    ("wrong", "what", "parts"),
    [
        (report("b", versions={**FACTS["versions"], "torch": "2.5"}), "versions", ["torch 2.5"]),
        (report("b", versions={"python": "3.11.9"}), "versions", ["raysim missing", "ray missing"]),
        (report("b", fingerprint="xyz"), "numerics", ["xyz", "here abc", "last bits"]),
        (replace(report("b"), skew_s=-2.5), "clock", ["-2.50 s", "NTP"]),
        (report("b", gpus=2.0, cuda_devices=1), "node", ["2 GPUs", "CUDA finds 1"]),
        (report("b", free_bytes=10**8), "node", ["0 GB free", "RAYSIM_CACHE"]),
        (replace(report("b"), wrong="died"), "node", ["no answer (died)"]),
    ],
)
def test_one_bad_node_is_found_and_named(wrong, what, parts):
    found = failed([report("a"), wrong])

    assert list(found) == [what]
    assert "b (id-b)" in found[what]
    assert [part for part in parts if part not in found[what]] == []


def test_a_clock_is_not_blamed_for_a_slow_network():
    slow = replace(report(), skew_s=1.4, round_trip_s=1.0)

    assert failed([slow]) == {}
    assert "clock" in failed([replace(slow, round_trip_s=0.2)])


def test_a_storage_that_is_not_shared_is_named_with_the_node():
    (good,) = judge_storage("/mnt/x", [])
    (bad,) = judge_storage("/mnt/x", [("10.0.0.3", "does not see it")])

    assert good.ok
    assert bad.ok is False
    assert "10.0.0.3: /mnt/x: does not see it" in bad.says


def test_cluster_options_need_cluster(capsys):
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--storage", "/mnt"])

    assert left.value.code == 2
    assert "add --cluster" in capsys.readouterr().err


def test_a_node_that_dies_before_its_clock_is_read_is_a_finding_of_its_own(monkeypatch):
    def dies(node):
        raise NodeDiedError("the node is gone")

    monkeypatch.setattr(inspection, "_clock", dies)

    found = inspection._report(report().node, FACTS)

    assert found.wrong
    assert failed([found, report("10.0.0.2")]).keys() == {"node"}

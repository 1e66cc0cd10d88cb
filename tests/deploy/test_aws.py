"""deploy/cluster.yaml through `ray up`, one worker and `ray down`, against moto's EC2 and IAM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
MINE = "192.0.2.7/32"
PROGRAMS = {
    # Both note machine and command, one line each; moto's machines do not exist.
    "ssh": 'for word in "$@"; do [[ $word == *@* && -z $to ]] && to=${word#*@}; done\n'
    'echo "$to ${@: -1}" >>"$CALLS"',
    "rsync": 'from=${@: -2:1} to=${@: -1} machine=${to#*@} path=${to#*:"~"/}\n'
    'echo "${machine%%:*} rsync $path $*" >>"$CALLS"\n'
    "target=$HOMES/${machine%%:*}/$path\n"
    'mkdir -p "$(dirname "$target")" && cp -rT "$from" "$target"',
}


def simulate(folder: Path) -> dict[str, Any]:
    """Return what the simulated AWS held after `ray up` and after `ray down`, and all commands."""
    for name in ("bin", "home/.ray", "code", "homes", "tmp"):
        (folder / name).mkdir(parents=True)
    for name, body in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "home/.ray/auth_token").write_text("not a real token")
    (folder / "code/README.md").write_text("stands for the repository")
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "HOME": f"{folder}/home",
        "TMPDIR": f"{folder}/tmp",
        "HOMES": f"{folder}/homes",
        "CALLS": f"{folder}/calls",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-west-2",
        "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    script = Path(__file__).with_name("simulate_aws.py")
    done = subprocess.run(
        [sys.executable, str(script), str(ROOT / "deploy/cluster.yaml"), MINE],
        cwd=folder / "code", env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert told, done.stdout[-4000:] + done.stderr[-4000:]
    facts: dict[str, Any] = json.loads(told[0].removeprefix("FACTS "))
    facts["calls"] = (folder / "calls").read_text().splitlines()
    return facts


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the facts of a cluster whose security group was made first."""
    return simulate(tmp_path_factory.mktemp("aws"))


def kind(instance: dict[str, Any]) -> str:
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["ray-cluster-name"] == "raysim"
    return tags["ray-user-node-type"]


def machines(aws: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {kind(instance): instance for instance in aws["instances"]}


def test_head_is_on_demand_and_workers_are_spot(aws):
    head, worker = machines(aws)["head"], machines(aws)["gpu_a10g"]

    assert (head["InstanceType"], head.get("InstanceLifecycle")) == ("m5.2xlarge", None)
    assert (worker["InstanceType"], worker["InstanceLifecycle"]) == ("g5.2xlarge", "spot")
    for machine in (head, worker):
        assert machine["ImageId"] == "ami-00000000000000000"
        assert machine["MetadataOptions"]["HttpTokens"] == "required"


def test_resources_are_none_on_the_head_and_read_from_the_machine_on_workers(aws):
    types = aws["bootstrap"]["available_node_types"]

    assert types["head"]["resources"] == {"CPU": 0}
    workers = [kind for name, kind in types.items() if name != "head"]
    assert len(workers) == 3
    for kind in workers:
        assert (kind["resources"]["CPU"], kind["resources"]["GPU"]) == (8, 1)


def test_disks_are_large_encrypted_and_go_with_the_machine(aws):
    assert len(aws["volumes"]) == 2
    for disk in aws["volumes"]:
        assert (disk["Size"], disk["VolumeType"], disk["Encrypted"]) == (150, "gp3", True)
    for machine in aws["instances"]:
        (disk,) = machine["BlockDeviceMappings"]
        assert disk["Ebs"]["DeleteOnTermination"] is True


def ranges(rules: list[dict[str, Any]]) -> dict[int | None, list[str]]:
    found: dict[int | None, list[str]] = {}
    for rule in rules:
        every = [one["CidrIp"] for one in rule["IpRanges"]]
        every += [one["CidrIpv6"] for one in rule.get("Ipv6Ranges", [])]
        found.setdefault(rule.get("FromPort"), []).extend(every)
    return found


def test_a_group_made_first_keeps_its_rules(aws):
    names = {group["GroupName"] for one in aws["instances"] for group in one["SecurityGroups"]}

    assert names == {"raysim"}
    assert ranges(aws["ingress"]) == {None: [], 22: [MINE]}


def test_a_group_made_by_ray_opens_only_ssh(aws):
    # The README says so: this is why it tells to make the group first.
    assert ranges(aws["ingress_by_ray"]) == {None: [], 22: ["0.0.0.0/0"]}


def test_only_the_head_may_start_machines(aws):
    head, worker = machines(aws)["head"], machines(aws)["gpu_a10g"]

    assert head["IamInstanceProfile"]["Arn"].endswith("/ray-autoscaler-v1")
    assert "IamInstanceProfile" not in worker
    assert aws["policies"] == ["AmazonEC2FullAccess", "AmazonS3FullAccess"]


def steps(aws: dict[str, Any], address: str) -> list[int]:
    """Return where in the machine's own order token, driver, install, token mode and start come."""
    mine = [call for call in aws["calls"] if call.startswith(address + " ")]
    marks = ("rsync .ray/auth_token", "nvidia-smi", "pip install -q -e", "RAY_AUTH_MODE=token")
    every = (*marks, "mount -t nfs4", "raysim-spot-watcher@aws", "ray start")
    found = [[n for n, call in enumerate(mine) if mark in call] for mark in every]
    return [places[0] if places else -1 for places in found]


def test_token_driver_install_and_start_come_in_this_order(aws):
    head, worker = machines(aws)["head"], machines(aws)["gpu_a10g"]

    of_head = steps(aws, head["PublicIpAddress"])
    assert of_head.pop(5) == -1  # not a spot machine
    assert of_head.pop(1) == -1  # no GPU, nothing to wait for
    assert of_head == sorted(of_head)
    assert -1 not in of_head
    of_worker = steps(aws, worker["PrivateIpAddress"])
    assert of_worker == sorted(of_worker)
    assert -1 not in of_worker


def test_dashboard_of_the_head_listens_on_loopback(aws):
    (start,) = [call for call in aws["calls"] if "ray start --head" in call]

    assert "--dashboard-host=127.0.0.1" in start
    assert '"CPU":0' in start


def test_nothing_is_left_after_ray_down(aws):
    assert aws["left"] == []
    assert aws["left_volumes"] == []

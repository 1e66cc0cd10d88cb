"""`ray up` and `ray down` of a cluster file in a simulated AWS; prints as JSON what AWS then holds.

A program for a process and a home folder of its own: `python simulate_aws.py CLUSTER_YAML CIDR`.
The security group is made first and lets only that range of addresses use ssh, as deploy/README.md
advises; at the end Ray makes another one, of its own. Everything of Ray is real; EC2 and IAM are
moto's. As moto's machines do not exist, `ssh` must be a program on PATH that only notes what it was
asked, and `rsync` one that copies into a folder per machine under HOMES instead.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import boto3
import yaml
from moto import mock_aws

GPU_TYPE = "gpu_a10g"


def make_group(name: str, cidr: str) -> None:
    ec2 = boto3.client("ec2")
    group = ec2.create_security_group(GroupName=name, Description="raysim")["GroupId"]
    rules: list[dict[str, Any]] = [
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": cidr}]},
    ]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rules)


def instances() -> list[dict[str, Any]]:
    found = boto3.client("ec2").describe_instances()["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def volumes() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = boto3.client("ec2").describe_volumes()["Volumes"]
    return found


def ingress(group_name: str) -> list[dict[str, Any]]:
    groups = boto3.client("ec2").describe_security_groups()["SecurityGroups"]
    (group,) = [group for group in groups if group["GroupName"] == group_name]
    rules: list[dict[str, Any]] = group["IpPermissions"]
    return rules


def group_by_ray(cluster_yaml: str) -> list[dict[str, Any]]:
    """Return the rules of the security group that Ray makes where there is none."""
    from ray.autoscaler._private.commands import _bootstrap_config

    config = yaml.safe_load(Path(cluster_yaml).read_text())
    config["provider"]["security_group"]["GroupName"] = "made-by-ray"
    _bootstrap_config(config, no_config_cache=True)
    return ingress("made-by-ray")


def start_worker(config: dict[str, Any]) -> None:
    """Do what the autoscaler on the head does for one worker, with Ray's launcher and installer."""
    from ray.autoscaler._private.event_summarizer import EventSummarizer
    from ray.autoscaler._private.node_launcher import BaseNodeLauncher
    from ray.autoscaler._private.node_provider_availability_tracker import (
        NodeProviderAvailabilityTracker,
    )
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler._private.util import ConcurrentCounter
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.instance_manager.ray_installer import RayInstaller
    from ray.core.generated.instance_manager_pb2 import Instance

    provider = _get_node_provider(config["provider"], config["cluster_name"])
    pending = ConcurrentCounter()
    pending.inc(GPU_TYPE, 1)
    launcher = BaseNodeLauncher(
        provider, pending, EventSummarizer(), NodeProviderAvailabilityTracker()
    )
    (node_id,) = launcher.launch_node(config, 1, GPU_TYPE) or ()
    provider.non_terminated_nodes({})  # as the autoscaler does: fills the provider's cache
    machine = Instance(instance_type=GPU_TYPE, cloud_instance_id=node_id)
    RayInstaller(provider, AutoscalingConfig(config)).install_ray(machine, "172.31.0.10")


def main(cluster_yaml: str, cidr: str) -> None:
    import ray.autoscaler._private.aws.config as bootstrap
    import ray.autoscaler._private.aws.node_provider as provider
    import ray.autoscaler._private.commands as commands
    from ray.scripts.scripts import cli

    provider.TAG_BATCH_DELAY = commands.POLL_INTERVAL = 0  # seconds for AWS; moto answers at once
    # Ray sleeps 15 s twice until a new IAM role has reached all of AWS; moto needs no time.
    bootstrap.time = types.SimpleNamespace(sleep=lambda seconds: None)
    group = yaml.safe_load(Path(cluster_yaml).read_text())["provider"]["security_group"][
        "GroupName"
    ]
    make_group(group, cidr)
    cli.main(["up", "-y", "--no-config-cache", cluster_yaml], standalone_mode=False)
    laptop = os.environ["HOME"]
    (head,) = Path(os.environ["HOMES"]).iterdir()
    os.environ["HOME"] = str(head)  # the autoscaler runs there, with the files that came by rsync
    sent = (head / "ray_bootstrap_config.yaml").read_text()
    start_worker(yaml.safe_load(sent))
    os.environ["HOME"] = laptop
    role = boto3.resource("iam").InstanceProfile("ray-autoscaler-v1").roles[0]
    facts = {
        "instances": instances(),
        "volumes": volumes(),
        "ingress": ingress(group),
        "bootstrap": yaml.safe_load(sent),
        "policies": sorted(policy.policy_name for policy in role.attached_policies.all()),
    }
    facts = json.loads(json.dumps(facts, default=str))
    cli.main(["down", "-y", cluster_yaml], standalone_mode=False)
    facts["left"] = [one["InstanceId"] for one in instances() if one["State"]["Name"] == "running"]
    facts["left_volumes"] = [one["VolumeId"] for one in volumes()]
    facts["ingress_by_ray"] = group_by_ray(cluster_yaml)
    print("FACTS " + json.dumps(facts))


if __name__ == "__main__":
    with mock_aws():
        main(*sys.argv[1:])

"""The cluster files of deploy/, checked with Ray's own schema and preparation, without a cloud."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash") or "bash"


def test_ray_accepts_the_file(raw, prepared):
    config = prepared(raw)

    assert config["head_node_type"] in config["available_node_types"]
    workers = sum(kind["min_workers"] for kind in config["available_node_types"].values())
    assert workers <= config["max_workers"]


def test_misspelled_key_is_refused(raw, prepared):
    raw["idle_timeout_minuts"] = raw.pop("idle_timeout_minutes")

    with pytest.raises(jsonschema.ValidationError, match="idle_timeout_minuts"):
        prepared(raw)


def test_value_of_a_wrong_type_is_refused(raw, prepared):
    raw["setup_commands"] = "pip install raysim"

    # Ray joins the command lists before it validates, so the type may show in either place.
    with pytest.raises((jsonschema.ValidationError, TypeError)):
        prepared(raw)


def test_misspelled_key_of_a_node_type_is_refused(cloud, prepared):
    worker = cloud["available_node_types"]["gpu_l4"]
    worker["min_worker"] = worker.pop("min_workers")

    with pytest.raises(jsonschema.ValidationError, match="min_worker"):
        prepared(cloud)


def test_unknown_head_type_is_refused(cloud, prepared):
    cloud["head_node_type"] = "haed"

    with pytest.raises(ValueError, match="head_node_type"):
        prepared(cloud)


def test_more_workers_than_allowed_are_refused(cloud, prepared):
    cloud["available_node_types"]["gpu_l4"]["min_workers"] = cloud["max_workers"] + 1

    with pytest.raises(ValueError, match="max_workers"):
        prepared(cloud)


@pytest.mark.parametrize("address", ["head_ip", "worker_ips"])
def test_local_provider_without_addresses_is_refused(read, prepared, address):
    import click

    raw = read("cluster-onprem.yaml")
    del raw["provider"][address]

    with pytest.raises((click.ClickException, SystemExit)):
        prepared(raw)


def test_head_takes_no_actors(cloud):
    head = cloud["available_node_types"][cloud["head_node_type"]]

    assert head["resources"] == {"CPU": 0}
    assert head["max_workers"] == 0


def test_head_of_your_own_machines_takes_no_actors(read):
    start = " ".join(read("cluster-onprem.yaml")["head_start_ray_commands"])

    assert "--num-cpus=0" in start
    assert "--num-gpus=0" in start


def test_all_machines_of_your_own_are_used(read, prepared):
    raw = read("cluster-onprem.yaml")

    (kind,) = prepared(raw)["available_node_types"].values()

    assert kind["min_workers"] == kind["max_workers"] == len(raw["provider"]["worker_ips"])


def workers_of(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the node types that are not the head's."""
    types = raw["available_node_types"]
    return [kind for name, kind in types.items() if name != raw["head_node_type"]]


def test_gpus_of_several_types_come_when_a_run_asks_for_them(cloud):
    machines = {str(worker["node_config"]) for worker in workers_of(cloud)}

    assert len(machines) >= 2
    assert [worker["min_workers"] for worker in workers_of(cloud)] == [0] * len(machines)
    assert all(worker["max_workers"] == cloud["max_workers"] for worker in workers_of(cloud))


def test_workers_watch_for_the_notice_of_their_own_cloud(cloud):
    unit = (ROOT / "deploy/raysim-spot-watcher@.service").read_text()
    (command,) = cloud["worker_setup_commands"]
    script = re.search(r"^ExecStart=\S+ \S+/raysim/(\S+) %i$", unit, re.M)

    assert f"raysim-spot-watcher@{cloud['provider']['type']}" in command
    assert "~/raysim/deploy/raysim-spot-watcher@.service" in command
    assert script
    assert (ROOT / script[1]).is_file()
    assert f"User={cloud['auth']['ssh_user']}\n" in unit
    assert "Environment=RAY_AUTH_MODE=token\n" in unit


def test_idle_workers_leave_and_stopped_machines_are_not_kept(raw):
    assert 1 <= raw["idle_timeout_minutes"] <= 60
    if raw["provider"]["type"] == "aws":
        assert raw["provider"]["cache_stopped_nodes"] is False


def test_aws_machines_are_pinned_with_disk_and_spot_workers(read):
    raw = read("cluster.yaml")
    types = raw["available_node_types"]

    for kind in types.values():
        (disk,) = kind["node_config"]["BlockDeviceMappings"]
        assert disk["Ebs"]["VolumeSize"] >= 100  # the environment alone takes 5 GB, an image 60
        assert disk["Ebs"]["DeleteOnTermination"] is True
        assert disk["Ebs"]["Encrypted"] is True
        assert re.fullmatch(r"ami-[0-9a-f]{17}", kind["node_config"]["ImageId"])
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required"
    for worker in workers_of(raw):
        assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert "InstanceMarketOptions" not in types["head"]["node_config"]
    zones = raw["provider"]["availability_zone"].split(",")
    assert len(zones) >= 2
    assert all(zone.startswith(raw["provider"]["region"]) for zone in zones)


def test_gcp_machines_are_pinned_with_disk_and_spot_workers(read):
    raw = read("cluster-gcp.yaml")
    provider, types = raw["provider"], raw["available_node_types"]
    zone = provider["availability_zone"]

    assert zone.startswith(provider["region"] + "-")
    for kind in types.values():
        (disk,) = kind["node_config"]["disks"]
        made = disk["initializeParams"]
        assert disk["boot"]
        assert disk["autoDelete"]
        assert made["diskSizeGb"] >= 100
        assert made["diskType"] == f"zones/{zone}/diskTypes/pd-balanced"
        image = (
            r"projects/[a-z-]+/global/images/ubuntu-accelerator-2404-amd64-with-nvidia-\d+-v\d{8}"
        )
        assert re.fullmatch(image, made["sourceImage"])  # one image, not the newest of a family
    for worker in workers_of(raw):
        (gpu,) = worker["node_config"]["guestAccelerators"]
        assert gpu["acceleratorCount"] == worker["resources"]["GPU"] == 1
        assert worker["node_config"]["scheduling"]["provisioningModel"] == "SPOT"
        assert worker["node_config"]["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert "scheduling" not in types["head"]["node_config"]


def test_install_names_extras_and_files_that_exist(raw):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (install,) = [c for c in raw["setup_commands"] if "pip install" in c]

    extras = install.split("[")[1].split("]")[0].split(",")
    assert set(extras) <= project["optional-dependencies"].keys()
    assert "-c tools/constraints.txt" in install
    assert (ROOT / "tools" / "constraints.txt").is_file()
    if raw["provider"]["type"] != "local":
        assert any(extra.startswith("gpu-cuda") for extra in extras)


def commands(raw: dict[str, Any]) -> list[str]:
    places = [raw, *raw.get("available_node_types", {}).values()]
    return [c for place in places for key in place if key.endswith("commands") for c in place[key]]


def test_every_command_is_readable_for_bash(raw):
    assert len(commands(raw)) >= 6
    for command in commands(raw):
        subprocess.run([BASH, "-n", "-c", f"({command})"], check=True)


@pytest.mark.parametrize(
    ("comes_up", "code"), [(True, 0), (False, 1)], ids=["at the third try", "never"]
)
def test_gpu_machines_wait_for_their_driver(cloud, tmp_path, comes_up, code):
    tries = tmp_path / "tries"
    scripts = {
        "nvidia-smi": f"echo >>{tries}; "
        + (f"(($(wc -l <{tries}) >= 3))" if comes_up else "false"),
        "sleep": "true",
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!{BASH}\n{body}\n")
        (tmp_path / name).chmod(0o755)
    ((command,), *others) = [w["initialization_commands"] for w in workers_of(cloud)]
    assert all(other == [command] for other in others)

    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run([BASH, "-c", f"({command})"], env={"PATH": path}, check=False)

    assert done.returncode == code
    assert len(tries.read_text().splitlines()) == (3 if comes_up else 120)


def test_bashrc_turns_token_mode_on_once_also_when_set_up_again(raw, tmp_path):
    (command,) = [c for c in raw["setup_commands"] if "RAY_AUTH_MODE" in c]
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text("export ACTIVE=yes\n")
    (tmp_path / ".bashrc").write_text("old=line\nsource ~/gone/activate  # raysim cluster\n")
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    for _ in range(2):
        subprocess.run([BASH, "-c", f"({command})"], env=home, check=True)

    lines = (tmp_path / ".bashrc").read_text().splitlines()
    assert [line.endswith("# raysim cluster") for line in lines] == [False, True]
    seen = subprocess.run(
        [BASH, "-c", "source ~/.bashrc; echo $ACTIVE $RAY_AUTH_MODE"],
        env=home, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert seen.stdout.split() == ["yes", "token"]


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_rsync_copies_code_token_and_key_but_no_history_environment_or_results(raw, tmp_path):
    from ray.autoscaler._private.command_runner import SSHCommandRunner

    wanted = ["raysim/data/world.py", "tools/constraints.txt", "pyproject.toml"]
    left_out = [".git/HEAD", ".venv/bin/python", "runs/a/result.json", "raysim/__pycache__/a.pyc"]
    for name in (*wanted, *left_out, ".mypy_cache/a", ".env"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text("x")
    shutil.copy(ROOT / ".gitignore", tmp_path / "code")
    for name in ("auth_token", "key.pem"):  # the launcher copies these one by one
        (tmp_path / name).write_text("x")
    rules = SSHCommandRunner._create_rsync_filter_args(None, raw)

    for source in ("code/", "auth_token", "key.pem"):
        subprocess.run(["rsync", "-a", *rules, source, "to/"], cwd=tmp_path, check=True)

    copied = {path for path in (tmp_path / "to").rglob("*") if path.is_file()}
    names = {str(path.relative_to(tmp_path / "to")) for path in copied}
    assert names == {*wanted, "auth_token", "key.pem", ".gitignore"}

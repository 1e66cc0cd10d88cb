"""deploy/cluster.yaml, checked with Ray's own schema and without a cloud."""

from __future__ import annotations

import copy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash") or "bash"


@pytest.fixture
def raw() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "cluster.yaml").read_text())


def prepared(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the config as `ray up` would use it; raises what `ray up` would say."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(copy.deepcopy(raw))
    validate_config(config)
    return config


def test_ray_accepts_the_file(raw):
    config = prepared(raw)

    assert config["provider"]["type"] == "aws"
    assert config["available_node_types"]["gpu_worker"]["min_workers"] == 2


def test_misspelled_key_is_refused(raw):
    raw["idle_timeout_minuts"] = raw.pop("idle_timeout_minutes")

    with pytest.raises(jsonschema.ValidationError, match="idle_timeout_minuts"):
        prepared(raw)


def test_misspelled_key_of_a_node_type_is_refused(raw):
    worker = raw["available_node_types"]["gpu_worker"]
    worker["min_worker"] = worker.pop("min_workers")

    with pytest.raises(jsonschema.ValidationError, match="min_worker"):
        prepared(raw)


def test_unknown_head_type_is_refused(raw):
    raw["head_node_type"] = "haed"

    with pytest.raises(ValueError, match="head_node_type"):
        prepared(raw)


def test_head_takes_no_actors_and_workers_are_spot_gpus(raw):
    head, worker = (raw["available_node_types"][name] for name in ("head", "gpu_worker"))

    assert head["resources"] == {"CPU": 0}
    assert head["max_workers"] == 0
    assert worker["min_workers"] <= worker["max_workers"] <= raw["max_workers"]
    assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    for kind in (head, worker):
        (disk,) = kind["node_config"]["BlockDeviceMappings"]
        assert disk["Ebs"]["VolumeSize"] >= 100  # the environment alone takes 5 GB, an image 60
        assert kind["node_config"]["ImageId"].startswith("ami-")


def test_token_authentication_stays_on_and_no_token_is_in_the_repository(raw):
    assert raw["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("RAY_AUTH_MODE=token" in command for command in raw["setup_commands"])
    text = (ROOT / "deploy" / "cluster.yaml").read_text()
    assert "RAY_AUTH_TOKEN=" not in text
    assert "RAY_AUTH_MODE=disabled" not in text
    assert "--dashboard-host=0.0.0.0" not in text


def test_install_names_an_extra_and_files_that_exist(raw):
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (install,) = [c for c in raw["setup_commands"] if "pip install" in c]

    extras = install.split("[")[1].split("]")[0].split(",")
    assert set(extras) <= project["optional-dependencies"].keys()
    assert any(extra.startswith("gpu-cuda") for extra in extras)
    assert "-c tools/constraints.txt" in install
    assert (ROOT / "tools" / "constraints.txt").is_file()


def test_every_command_is_readable_for_bash(raw):
    for section in [key for key in raw if key.endswith("commands")]:
        for command in raw[section]:
            subprocess.run([BASH, "-n", "-c", f"({command})"], check=True)


@pytest.mark.parametrize(
    ("gpu", "comes_up", "code"),
    [(False, False, 0), (True, True, 0), (True, False, 1)],
    ids=["no GPU", "driver comes up at the third try", "driver never comes up"],
)
def test_start_waits_for_the_driver_of_gpu_machines(raw, tmp_path, gpu, comes_up, code):
    tries = tmp_path / "tries"
    scripts = {
        "lspci": "echo '00:1e.0 3D controller: NVIDIA'" if gpu else "echo '00:03.0 Ethernet'",
        "nvidia-smi": f"echo >>{tries}; "
        + (f"(($(wc -l <{tries}) >= 3))" if comes_up else "false"),
        "sleep": "true",
    }
    for name, body in scripts.items():
        (tmp_path / name).write_text(f"#!{BASH}\n{body}\n")
        (tmp_path / name).chmod(0o755)
    (command,) = raw["initialization_commands"]

    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run([BASH, "-c", f"({command})"], env={"PATH": path}, check=False)

    assert done.returncode == code
    assert tries.exists() == gpu
    if comes_up:
        assert len(tries.read_text().splitlines()) == 3

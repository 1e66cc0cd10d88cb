"""What a cluster file must hold so that only its owner can use the cluster; each rule can fail."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "~/.ray/auth_token"
SECRET = re.compile(
    r"PRIVATE KEY|\bAKIA[0-9A-Z]{16}\b|RAY_AUTH_TOKEN=|aws_secret|[0-9a-f]{32}", re.IGNORECASE
)
Break = Callable[[dict[str, Any]], object]


def problems(config: dict[str, Any]) -> list[str]:
    """Return what is wrong with a prepared config, Ray's defaults included."""
    found = []
    for role in ("head", "worker"):
        if not any("export RAY_AUTH_MODE=token" in c for c in config[f"{role}_setup_commands"]):
            found.append(f"{role} without token mode")
    for name, kind in config["available_node_types"].items():
        own = kind.get("worker_setup_commands")  # takes the place of the general list
        if own is not None and not any("export RAY_AUTH_MODE=token" in c for c in own):
            found.append(f"{name} without token mode")
    if config["file_mounts"].get(TOKEN) != TOKEN:
        found.append("token is not brought to the nodes")
    start = " ".join(config["head_start_ray_commands"])
    if "--dashboard-host=127.0.0.1" not in start:
        found.append("dashboard is not bound to loopback")
    for name in ("auth_token", "ray_bootstrap_key.pem", "ray-autoscaler_us-west-2.pem"):
        if any(fnmatch.fnmatch(name, rule) for rule in config["rsync_exclude"]):
            found.append(f"{name} would not be copied")  # rsync applies the rules to single files
    text = json.dumps(config)
    if "0.0.0.0" in text:
        found.append("open to the world")
    if re.search("RAY_AUTH_MODE=(?!token)", text):
        found.append("token mode switched off")
    if SECRET.search(text):
        found.append("holds a secret")
    return found


def test_the_files_are_safe(raw, prepared):
    assert problems(prepared(raw)) == []


def edit(key: str, change: Callable[[Any], Any]) -> Break:
    return lambda raw: raw.__setitem__(key, change(raw[key]))


def listen_everywhere(commands: list[str]) -> list[str]:
    return [command.replace("127.0.0.1", "0.0.0.0") for command in commands]


BREAKS: dict[str, tuple[str, Break]] = {
    "no token mode": (
        "without token mode",
        edit("setup_commands", lambda old: [c for c in old if "RAY_AUTH_MODE" not in c]),
    ),
    "token mode off": (
        "switched off",
        edit("head_start_ray_commands", lambda old: ["export RAY_AUTH_MODE=disabled", *old]),
    ),
    "token not copied": ("not brought", lambda raw: raw["file_mounts"].pop(TOKEN)),
    "token excluded": ("would not be copied", edit("rsync_exclude", lambda old: [*old, "*token"])),
    "key excluded": ("would not be copied", edit("rsync_exclude", lambda old: [*old, "*.pem"])),
    "Ray's own start command": ("loopback", lambda raw: raw.pop("head_start_ray_commands")),
    "dashboard everywhere": (
        "open to the world",
        edit("head_start_ray_commands", listen_everywhere),
    ),
    "open port": (
        "open to the world",
        lambda raw: raw["provider"].update(
            security_group={"IpPermissions": [{"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]}
        ),
    ),
    "token written down": (
        "secret",
        edit("setup_commands", lambda old: [*old, "export RAY_AUTH_TOKEN=abc"]),
    ),
    "key written down": (
        "secret",
        edit("setup_commands", lambda old: [*old, "echo -----BEGIN OPENSSH PRIVATE KEY-----"]),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_file_is_noticed(raw, prepared, name):
    expected, damage = BREAKS[name]
    damage(raw)

    assert any(expected in problem for problem in problems(prepared(raw)))


def test_a_worker_type_with_its_own_setup_needs_token_mode_too(cloud, prepared):
    cloud["available_node_types"]["gpu_l4"]["worker_setup_commands"] = ["true"]

    assert problems(prepared(cloud)) == ["gpu_l4 without token mode"]


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").iterdir()), ids=lambda path: path.name)
def test_no_file_of_deploy_holds_a_secret_or_opens_a_port_to_all(path):
    text = path.read_text()

    assert not SECRET.search(text)
    assert "0.0.0.0" not in text
    assert not re.search("RAY_AUTH_MODE=(?!token)", text)

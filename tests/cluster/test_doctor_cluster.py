"""``raysim doctor --cluster``: one good node, then a second one with everything wrong."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest

import raysim

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
head = runpy.run_path(str(Path(__file__).with_name("isolated_head.py")))["head"]
SKEWED = """
import time
_time = time.time
time.time = lambda: _time() + 7.0
"""
"""What a clock that is seven seconds ahead looks like to the Python processes of a node."""


def doctor(head, *line, **environment):
    done = head.raysim("doctor", "--cluster", "--json", *line, **environment)
    report = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    return done, report


def failed(report) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in report["findings"]:
        if finding["ok"] is False:
            found.setdefault(finding["what"], []).append(finding["says"])
    return found


@pytest.fixture(scope="module")
def alone(head):
    """What the doctor says while the head is the only node: as a driver, and through the port."""
    storage = ("--storage", head.storage)
    return [
        doctor(head, "--address", "127.0.0.1:6379", *storage),
        doctor(head, "--address", head.address, *storage),
        doctor(head, "--address", "auto"),
    ]


@pytest.fixture(scope="module")
def with_bad_node(alone, head):
    """A second node joins: another raysim and clock, and a storage folder that is its own."""
    other = head.home / "other"
    shutil.copytree(Path(raysim.__file__).parent, other / "raysim")
    text = (other / "raysim/__init__.py").read_text()
    (other / "raysim/__init__.py").write_text(text.replace(raysim.__version__, "0.0.9"))
    numerics = other / "raysim/runtime/numerics.py"
    numerics.write_text(
        numerics.read_text() + '\n\ndef numeric_fingerprint():\n    return "other"\n'
    )
    (other / "sitecustomize.py").write_text(SKEWED)
    mount = f"mount -t tmpfs tmpfs {head.storage}"
    start = "ray start --address=127.0.0.1:6379 --num-cpus=1 --num-gpus=2"
    small = "--object-store-memory=100000000"
    line = ("unshare", "--mount", "sh", "-c", f"{mount} && PYTHONPATH={other} {start} {small}")
    done = head.run(*line)
    assert done.returncode == 0, done.stdout + done.stderr
    return doctor(head, "--address", "127.0.0.1:6379", "--storage", head.storage)


def test_a_cluster_of_one_good_node_is_fit(alone):
    for done, report in alone:
        assert done.returncode == 0, done.stdout + done.stderr
        assert report["fit"] is True
        kinds = {finding["what"] for finding in report["findings"]}
        assert {"node", "versions", "numerics", "clock"} <= kinds
    assert "storage" in {finding["what"] for finding in alone[0][1]["findings"]}
    assert "storage" in {finding["what"] for finding in alone[1][1]["findings"]}


@pytest.mark.parametrize(
    ("what", "part"),
    [
        ("versions", "raysim 0.0.9"),
        ("numerics", "fingerprint other"),
        ("clock", "+7."),
        ("node", "2 GPUs (CUDA finds 0"),
        ("storage", "does not see what the driver wrote"),
    ],
)
def test_each_thing_wrong_with_a_node_is_found_once(with_bad_node, what, part):
    done, report = with_bad_node

    assert done.returncode == 3, done.stdout + done.stderr
    assert report["fit"] is False
    (says,) = failed(report)[what]
    assert part in says


def test_nothing_is_left_in_the_storage(with_bad_node, head):
    assert list(head.storage.iterdir()) == []


def test_without_the_right_token_the_doctor_stays_outside(head):
    for address in ("127.0.0.1:6379", head.address):
        done, _ = doctor(head, "--address", address, RAY_AUTH_TOKEN="0" * 64)

        assert done.returncode == 3, done.stdout + done.stderr
        assert "token" in done.stderr
        assert "Traceback" not in done.stderr


def test_an_address_where_nobody_answers_is_refused(head):
    done, _ = doctor(head, "--address", "127.0.0.1:1")

    assert done.returncode == 3
    assert "no Ray cluster answers there" in done.stderr

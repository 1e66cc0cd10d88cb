"""Storage of a cluster: every node reaches it, or the run is refused before it starts."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytestmark = pytest.mark.cluster
ONE = {"num_cpus": 2}

STRANGER = """
import subprocess, time
from pathlib import Path

hidden = f"{HOME}/out"
os.mkdir(hidden)
start = (
    f"mount -t tmpfs tmpfs {hidden} && exec {sys.executable} -m ray.scripts.scripts start "
    f"--address={cluster.address} --num-cpus=2 --block"
)
stranger = subprocess.Popen(["unshare", "--mount", "sh", "-c", start])
"""
"""A raylet in a mount namespace of its own: one folder there is another disk, as on a real node."""

WAIT = """
ray.init(address=cluster.address, log_to_driver=False)
deadline = time.monotonic() + 60
while len([n for n in ray.nodes() if n["Alive"]]) < 3 and time.monotonic() < deadline:
    time.sleep(0.2)
"""


def test_a_folder_that_one_node_does_not_see_is_refused_by_address(in_cluster):
    if os.geteuid() != 0:
        pytest.skip("a node with a disk of its own needs root (unshare --mount)")
    script = (
        STRANGER
        + WAIT
        + """
from raysim.runtime.ray.inspection import unreachable
from raysim.runtime.ray.connection import nodes

wrong = ""
try:
    Experiment(config("out/deep/run", actors=2)).run()
except RaysimError as caught:
    wrong = f"{type(caught).__name__} {caught}"
left = sorted(os.listdir(hidden))
seen = unreachable(f"{HOME}/elsewhere/run", nodes())
gone = not os.path.exists(f"{HOME}/elsewhere")
run = Experiment(config("elsewhere/run", actors=2)).run().summary["digest"]
names = sorted(os.listdir(f"{HOME}/elsewhere/run"))
stranger.terminate()
stranger.wait()
tell(wrong=wrong, left=left, seen=seen, gone=gone, same=run == local(), names=names)
"""
    )

    facts = in_cluster([ONE, ONE], script)

    assert facts["wrong"].startswith("EnvironmentNotFit output ")
    assert "out/deep/run is not reachable from 1 of 3 nodes" in facts["wrong"]
    assert "does not see what the driver wrote" in facts["wrong"]
    assert "NFS" in facts["wrong"]
    assert "s3://" in facts["wrong"]
    assert facts["left"] == []  # neither probes nor folders
    assert (facts["seen"], facts["gone"]) == ([], True)
    assert facts["same"]
    assert not [name for name in facts["names"] if "probe" in name]


def test_a_url_that_only_the_driver_sees_is_refused_on_one_node_too(in_cluster):
    facts = in_cluster(
        [ONE],
        """
wrong = ""
try:
    Experiment(config("x", "output=memory://run", actors=1)).run()
except RaysimError as caught:
    wrong = f"{type(caught).__name__} {caught}"
tell(wrong=wrong)
""",
    )

    assert facts["wrong"].startswith("EnvironmentNotFit output memory://run is not reachable")


@pytest.fixture
def s3() -> Any:
    """Yield the environment of a bucket named ``runs`` on loopback."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    access = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.get_host_and_port()[1]}",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in access.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="runs")
    yield access
    server.stop()


def test_actors_of_two_nodes_write_to_one_bucket(in_cluster, s3):
    facts = in_cluster(
        [ONE, ONE],
        """
from raysim.storage.objects import open_storage


def stop(event):
    if event.kind == "round" and (event.stage, event.round) == ("train", 3):
        raise KeyboardInterrupt


settings = config("x", "output=s3://runs/one", actors=2)
try:
    Experiment(settings).run(listeners=[stop])
except KeyboardInterrupt:
    pass
result = Experiment(settings).run(resume=True)
storage = open_storage("s3://runs/one")
rows = json.loads(storage.read("environment.json"))["actors"]
tell(same=result.summary["digest"] == local(), names=storage.names(),
     nodes=len({row["node_id"] for row in rows if row["role"] == "clients"}),
     objects=len(storage.names("checkpoint/objects")))
""",
        **s3,
    )

    assert facts["same"]
    assert facts["nodes"] == 2
    assert facts["objects"] > 0
    assert "result.json" in facts["names"]
    assert not [name for name in facts["names"] if name.startswith(".")]

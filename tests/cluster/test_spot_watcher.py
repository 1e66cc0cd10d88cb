"""deploy/spot_watcher.py against pretended metadata services and real raylets."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
WATCHER = Path(__file__).resolve().parents[2] / "deploy/spot_watcher.py"

WATCH = """
import atexit, subprocess, threading, time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ray._raylet import GcsClient

notices, asked = set(), []


class Metadata(BaseHTTPRequestHandler):
    def answer(self, text):
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def do_PUT(self):
        lives = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer("a token" if self.path == "/latest/api/token" and lives else None)

    def do_GET(self):
        asked.append(self.path)
        if self.path == "/computeMetadata/v1/instance/preempted":
            assert self.headers["Metadata-Flavor"] == "Google"
            self.answer("TRUE" if "gcp" in notices else "FALSE")
        else:
            assert self.path == "/latest/meta-data/spot/instance-action"
            assert self.headers["X-aws-ec2-metadata-token"] == "a token"
            end = (datetime.now(UTC) + timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%SZ")
            notice = json.dumps({"action": "terminate", "time": end})
            self.answer(notice if "aws" in notices else None)

    def log_message(self, *arguments):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
gcs = GcsClient(address=cluster.address)
ray.init(address=cluster.address)


@ray.remote(num_cpus=1)
class Busy:
    def is_there(self):
        return True


busy = [Busy.remote() for _ in workers]  # a node without work leaves as soon as it is drained
assert ray.get([actor.is_there.remote() for actor in busy])


def watch(provider, node):
    line = [sys.executable, os.environ["WATCHER"], provider, "--metadata", url, "--every", "0.2"]
    line += ["--address", cluster.address, "--node-id", node.node_id]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


watchers = {name: watch(name, node) for name, node in zip(("aws", "gcp"), workers)}
while len(set(asked)) < 2 or len(asked) < 8:
    time.sleep(0.2)
quiet = [w.poll() for w in watchers.values()], gcs.get_draining_nodes()
told = []
for name, node in zip(("aws", "gcp"), workers):
    notices.add(name)
    said = watchers[name].communicate(timeout=90)[0]
    ends = gcs.get_draining_nodes().get(node.node_id, 0) / 1000 - time.time()
    told.append([name, watchers[name].returncode, said, ends, sorted(gcs.get_draining_nodes())])
answers = ray.get([actor.is_there.remote() for actor in busy])
tell(answers=answers, quiet=quiet, told=told, workers=[node.node_id for node in workers])
"""


def test_a_notice_of_the_cloud_drains_the_node(in_cluster):
    facts = in_cluster(
        [{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 1}], WATCH, WATCHER=str(WATCHER)
    )

    aws, gcp = facts["workers"]
    assert facts["quiet"] == [[None, None], {}]  # without a notice nothing happens
    (_, code, said, ends, drained), (_, last_code, _, last_ends, last_drained) = facts["told"]
    assert (code, last_code) == (0, 0), said
    assert "aws takes this machine in 1" in said
    assert drained == [aws]
    assert last_drained == sorted([aws, gcp])
    assert 60 < ends <= 121  # AWS says when, Google gives half a minute
    assert 0 < last_ends <= 31
    assert facts["answers"] == [True, True]  # what runs there has the time that is left

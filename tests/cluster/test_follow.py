"""Following a job: Ctrl-C only looks away, a broken connection is taken up where it was."""

from __future__ import annotations

import json
import runpy
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
head = runpy.run_path(str(Path(__file__).with_name("isolated_head.py")))["head"]


@pytest.fixture(scope="module")
def followed(head):
    """The id of a job that ran to its end, with a log of many lines."""
    line = ("quickstart", "train.rounds=40", "runtime.actors=2", "--follow", "--json")
    done = head.raysim("submit", *line, "--storage", head.storage, "--address", head.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["job"]


CTRL_C = """
import json, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # in the background it would be ignored
job = subprocess.Popen([sys.executable, "-m", "raysim", "submit", *sys.argv[1:]],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
seen = []
for line in job.stdout:
    seen.append(line)
    if line.startswith("train "):
        job.send_signal(signal.SIGINT)
        break
job.stdout.read()
err = job.stderr.read()
print(json.dumps({"code": job.wait(), "seen": seen, "err": err}))
"""


def test_ctrl_c_looks_away_and_the_job_goes_on(head):
    line = ("quickstart", "name=away", "train.rounds=15", "train.epochs=300", "runtime.actors=2")
    where = ("--follow", "--storage", head.storage, "--address", head.address)

    done = head.run(sys.executable, "-c", textwrap.dedent(CTRL_C), *line, *where)

    told = json.loads(done.stdout)
    job = told["seen"][0].split()[1]
    assert told["code"] == 130, told
    assert f"raysim status {job} --follow" in told["err"]
    assert "Traceback" not in told["err"]
    again = head.raysim("status", job, "--follow", "--address", head.address)
    assert again.returncode == 0, again.stderr
    assert "train 15/15" in again.stdout


CUTTING_PROXY = """
import json, socket, subprocess, sys, threading

cuts = []


def pump(source, sink, left):
    try:
        while left and (data := source.recv(min(left, 65536))):
            sink.sendall(data)
            left -= len(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def serve(client):
    first = client.recv(65536)
    server = socket.create_connection(("127.0.0.1", 8265))
    server.sendall(first)
    cut = b"/logs/tail" in first.split(b"\\r\\n")[0] and len(cuts) < 3
    cuts.extend([1] * cut)
    threading.Thread(target=pump, args=(client, server, 10**9), daemon=True).start()
    pump(server, client, 1400 + 100 * len(cuts) if cut else 10**9)


door = socket.create_server(("127.0.0.1", 0))


def accept():
    while True:
        threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()


threading.Thread(target=accept, daemon=True).start()
url = f"http://127.0.0.1:{door.getsockname()[1]}"
done = subprocess.run([sys.executable, "-m", "raysim", "status", sys.argv[1], "--follow",
                       "--address", url], capture_output=True, text=True)
print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr,
                  "cuts": len(cuts)}))
"""


def test_a_log_that_is_cut_off_goes_on_where_it_was(followed, head):
    job = followed
    ask = (
        "import sys; from ray.job_submission import JobSubmissionClient as C\n"
        "sys.stdout.write(C(sys.argv[1]).get_job_logs(sys.argv[2]))"
    )

    told = json.loads(head.run(sys.executable, "-c", CUTTING_PROXY, job).stdout)
    whole = head.run(sys.executable, "-c", ask, head.address, job).stdout

    assert told["cuts"] == 3, told
    assert told["code"] == 0, told
    assert told["out"] == whole

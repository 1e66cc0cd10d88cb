"""Waits for the notice that a spot machine is taken back, then drains its Ray node.

    python deploy/spot_watcher.py aws        (or gcp; raysim-spot-watcher@.service runs it)

Draining (``ray drain-node``) tells Ray and raysim that the node goes: nothing new is placed there,
and the clients of a run move away at its next commit. The cloud ends the machine, not this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

METADATA = {"aws": "http://169.254.169.254", "gcp": "http://metadata.google.internal"}
GCP_NOTICE_S = 30.0
"""Google says that the machine goes, not when; it gives so long."""
ANSWER_S = 5.0
DRAIN_S = 60.0
RETRY_S = 2.0


def ask(url: str, *, method: str = "GET", headers: Mapping[str, str]) -> str | None:
    """Return the metadata service's answer; None: it knows nothing of that, or does not answer."""
    request = urllib.request.Request(url, method=method, headers=dict(headers))
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=ANSWER_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError:  # 404: no notice
        return None
    except OSError as wrong:
        print(f"spot watcher: {url} does not answer ({wrong})", file=sys.stderr, flush=True)
        return None


def seconds_left(provider: str, metadata: str) -> float | None:
    """Return how long the machine will live; None: nobody wants it back."""
    if provider == "gcp":
        url = f"{metadata}/computeMetadata/v1/instance/preempted"
        answer = ask(url, headers={"Metadata-Flavor": "Google"})
        return GCP_NOTICE_S if answer is not None and answer.strip() == "TRUE" else None
    life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = ask(f"{metadata}/latest/api/token", method="PUT", headers=life)
    if token is None:
        return None
    url = f"{metadata}/latest/meta-data/spot/instance-action"
    notice = ask(url, headers={"X-aws-ec2-metadata-token": token})
    if notice is None:
        return None
    when = datetime.fromisoformat(json.loads(notice)["time"].replace("Z", "+00:00"))
    return max((when - datetime.now(UTC)).total_seconds(), 0.0)


def drain(node_id: str | None, address: str | None, left_s: float, provider: str) -> bool:
    """Tell Ray that the node goes; return whether Ray took it in."""
    ours = Path(sys.executable).with_name("ray")  # of the environment that runs this
    line = [str(ours) if ours.exists() else "ray", "drain-node"]
    line += ["--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    line += ["--reason-message", f"{provider} takes the spot machine back"]
    line += ["--deadline-remaining-seconds", f"{left_s:.0f}"]
    line += ["--address", address] if address else []
    line += ["--node-id", node_id] if node_id else []
    try:
        return subprocess.run(line, timeout=DRAIN_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as wrong:
        print(f"spot watcher: draining failed ({wrong})", file=sys.stderr, flush=True)
        return False


def main() -> None:
    """Watch until a notice comes and the node is drained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("provider", choices=sorted(METADATA))
    parser.add_argument("--metadata", metavar="URL", help="metadata service; default: the cloud's")
    parser.add_argument("--every", type=float, default=5.0, metavar="S", help="ask so often")
    parser.add_argument("--address", metavar="HOST:PORT", help="cluster; default: this machine's")
    parser.add_argument("--node-id", metavar="HEX", help="node to drain; default: this machine's")
    given = parser.parse_args()
    metadata = (given.metadata or METADATA[given.provider]).rstrip("/")
    while (left_s := seconds_left(given.provider, metadata)) is None:
        time.sleep(given.every)
    print(f"spot watcher: {given.provider} takes this machine in {left_s:.0f} s", flush=True)
    until = time.monotonic() + left_s
    while not drain(given.node_id, given.address, left_s, given.provider):
        time.sleep(RETRY_S)
        left_s = max(until - time.monotonic(), 0.0)
    print("spot watcher: the node is drained", flush=True)


if __name__ == "__main__":
    main()

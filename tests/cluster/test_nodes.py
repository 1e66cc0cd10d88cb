"""One run over several nodes: the bits of a local run, joining by address, a node that dies."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ray

BIG_MODEL = '"model={name: mlp, hidden: 1000}"'
"""300 kB: such models live in the object store of a node, not inside messages."""


@pytest.fixture(scope="module")
def three_nodes(in_cluster):
    """Runs on three nodes, started from Python and by the command line."""
    script = """
    import subprocess

    def cli(folder, address, **environment):
        line = [sys.executable, "-m", "raysim", "run", "quickstart", "train.rounds=6", "--quiet",
                f"output={HOME}/{folder}", f"runtime.address={address}"]
        environment = {**os.environ, **environment}
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        if done.returncode:
            return [done.returncode, done.stderr]
        result = json.load(open(f"{HOME}/{folder}/result.json"))
        return [0, result["digest"], [row["node_id"] for row in rows(folder)]]

    spread = Experiment(config("spread", actors=3, servers=2)).run()
    nodes = sorted(node["NodeID"] for node in ray.nodes())
    homes = [row["node_id"] for row in rows("spread") if row["role"] == "clients"]
    ray.shutdown()
    tell(
        local=local(),
        spread=spread.summary["digest"],
        nodes=nodes,
        homes=homes,
        explicit=cli("explicit", cluster.address),
        auto=cli("auto", "auto", RAY_ADDRESS=cluster.address),
    )
    """
    return in_cluster([{"num_cpus": 1}] * 3, script)


def test_a_run_on_three_nodes_has_the_bits_of_a_local_one(three_nodes):
    assert three_nodes["spread"] == three_nodes["local"]
    assert sorted(three_nodes["homes"]) == three_nodes["nodes"]  # one client actor on each


@pytest.mark.parametrize("how", ["explicit", "auto"])
def test_an_address_joins_the_running_cluster(three_nodes, how):
    code, *rest = three_nodes[how]

    assert code == 0, rest
    digest, homes = rest
    assert digest == three_nodes["local"]
    assert set(homes) <= set(three_nodes["nodes"])


LOSE = """
import time
from raysim.runtime.ray.federation import RayFederation


def alive():
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def lose(folder, node, after=4, before=lambda: None):
    rounds = []

    def listen(event):
        rounds.extend([event.stage] if event.kind == "round" else [])
        if event.kind == "round" and len(rounds) == after:
            before()
            victim = node()
            cluster.remove_node(victim, allow_graceful=False)
            while victim.node_id in alive():  # until then its orphaned actors may still answer
                time.sleep(0.1)

    return listen


def home_of_a_client(folder):
    home = next(row["node_id"] for row in rows(folder) if row["role"] == "clients")
    return next(worker for worker in workers if worker.node_id == home)


def attempt(setup, *listeners, **options):
    try:
        summary = Experiment(setup).run(listeners=listeners, **options).summary
        return {"digest": summary["digest"], "restarts": summary["restarts"]}
    except RaysimError as wrong:
        return {"error": str(wrong), "kind": type(wrong).__name__}
    except Exception as wrong:
        return {"crash": f"{type(wrong).__name__}: {wrong}"[:500]}
"""


def test_a_lost_node_with_room_elsewhere_does_not_change_the_bits(in_cluster):
    script = """
    setup = config("lost", actors=2)
    victim = lambda: home_of_a_client("lost")
    tell(local=local(), **attempt(setup, lose("lost", victim)))
    """
    facts = in_cluster([{"num_cpus": 0}, {"num_cpus": 2}, {"num_cpus": 2}], LOSE + _plain(script))

    assert facts.get("digest") == facts["local"], facts
    assert facts["restarts"] >= 1


def test_a_lost_node_without_room_elsewhere_ends_the_run_and_resumes_later(in_cluster):
    script = """
    setup = config("lost", actors=2, start_timeout_s=15)
    victim = lambda: home_of_a_client("lost")
    ended = attempt(setup, lose("lost", victim))
    cluster.add_node(num_cpus=1)
    tell(local=local(), ended=ended, resumed=attempt(setup, resume=True))
    """
    facts = in_cluster([{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 1}], LOSE + _plain(script))

    assert "error" in facts["ended"], facts
    assert "--resume" in facts["ended"]["error"]
    assert facts["resumed"].get("digest") == facts["local"], facts


def test_models_lost_with_their_node_come_back_from_the_last_commit(in_cluster):
    # Actor and server share the only node with CPUs; another one comes just before it dies.
    script = f"""
    from raysim.runtime import placement

    placement._server_nodes = lambda nodes, homes, count: tuple(homes[:1] * count)
    setup = config("lost", {BIG_MODEL}, actors=1)
    more = lambda: cluster.add_node(num_cpus=2)
    told = attempt(setup, lose("lost", lambda: workers[0], before=more))
    homes = {{row["node_id"] for row in rows("lost")}}
    log = open(f"{{HOME}}/lost/run.log").read()
    tell(local=local({BIG_MODEL}), told=told, homes=len(homes), log=log)
    """
    facts = in_cluster([{"num_cpus": 0}, {"num_cpus": 2}], LOSE + _plain(script))

    assert facts["homes"] == 1
    assert facts["told"].get("digest") == facts["local"], facts
    assert "models were lost with their node" in facts["log"]
    assert "going on from the last commit" in facts["log"]


def test_a_run_over_a_second_connection_has_the_same_bits(in_cluster):
    script = """
    digests = []
    for folder in ("first", "second"):
        setup = config(folder, "train.rounds=1", actors=1)
        digests.append(Experiment(setup).run().summary["digest"])
        ray.shutdown()
    tell(same=digests[0] == digests[1])
    """

    assert in_cluster([{"num_cpus": 1}], script) == {"same": True}


def _plain(script):
    import textwrap

    return textwrap.dedent(script)

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
from ray.core.generated import autoscaler_pb2


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


def drain(folder, after=2):
    victims = []

    def listen(event):
        if (event.kind, event.stage) != ("round", "train"):
            return
        if event.round == after:
            victims.append(home_of_a_client(folder))
            empty(victims[0])
            time.sleep(1.5)  # rounds are short, and nodes are looked at once a second
        if event.round == after + 2:
            cluster.remove_node(victims[0], allow_graceful=False)
            while victims[0].node_id in alive():
                time.sleep(0.1)

    return listen


def empty(node):  # announce that a node will go, as for a spot instance
    from ray._raylet import GcsClient

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    at = int(1000 * (time.time() + 600))
    client = GcsClient(address=cluster.address)
    assert client.drain_node(node.node_id, reason, "spot notice", at)[0]


def events(folder):
    return [json.loads(line) for line in open(f"{HOME}/{folder}/events.jsonl")]


def groups_left():
    groups = ray.util.placement_group_table().values()
    return [group["state"] for group in groups if group["state"] != "REMOVED"]


def home_of_a_client(folder):
    home = next(row["node_id"] for row in rows(folder) if row["role"] == "clients")
    return next(worker for worker in workers if worker.node_id == home)


def all_free():
    # Ray frees the room of the run before a little later, node by node.
    for _ in range(100):
        if ray.available_resources().get("CPU") == ray.cluster_resources().get("CPU"):
            break
        time.sleep(0.1)


def attempt(setup, *listeners, **options):
    if ray.is_initialized():
        all_free()
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


def events(facts, kind):
    return [event for event in facts["events"] if event.get("event") == kind]


def test_a_lost_node_without_room_elsewhere_leaves_its_clients_to_the_others(in_cluster):
    script = """
    setup = config("lost", actors="auto")
    told = attempt(setup, lose("lost", lambda: home_of_a_client("lost")))
    tell(local=local(), **told, events=events("lost"), groups=groups_left())
    """
    facts = in_cluster([{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 1}], LOSE + _plain(script))

    assert facts.get("digest") == facts["local"], facts
    lost = [event["actor"] for event in events(facts, "lost")]
    assert len(lost) == len(set(lost)) == facts["restarts"], lost
    assert sum("client" in name for name in lost) == 1
    [moved] = events(facts, "moved")
    assert (moved["cause"], len(moved["clients"])) == ("lost", 6)
    assert moved["seconds"] > 0
    rounds = [event["event"] for event in facts["events"] if event.get("event") in HISTORY]
    after = rounds[rounds.index("lost") :]
    assert after[: after.index("commit")].count("round") <= 1  # committed at once
    assert facts["groups"] == []


HISTORY = ("round", "commit", "lost", "moved")


def test_models_lost_with_their_node_come_back_from_the_last_commit(in_cluster):
    # Actor and server share the only node with CPUs; another one comes just before it dies.
    script = f"""
    setup = config("lost", {BIG_MODEL}, actors=1)
    more = lambda: cluster.add_node(num_cpus=2)
    told = attempt(setup, lose("lost", lambda: workers[0], before=more))
    homes = {{row["node_id"] for row in rows("lost") if row["role"] != "coordinator"}}
    log = open(f"{{HOME}}/lost/run.log").read()
    tell(local=local({BIG_MODEL}), told=told, homes=len(homes), log=log)
    """
    facts = in_cluster([{"num_cpus": 0}, {"num_cpus": 2}], LOSE + _plain(script))

    assert facts["homes"] == 1
    assert facts["told"].get("digest") == facts["local"], facts
    assert "models were lost with their node" in facts["log"]
    assert "going on from the last commit" in facts["log"]


@pytest.fixture(scope="module")
def two_workers(in_cluster):
    """Three groups on two workers; then one worker is drained while a run goes on."""
    script = f"""
    import numpy as np
    import raysim.experiment.experiment as experiment
    from raysim.protocols import Contribution

    ray.cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    federations, make = [], experiment.make_federation
    kept = lambda *a, **k: federations.append(make(*a, **k)) or federations[-1]
    experiment.make_federation = kept
    three = 'data.partition={{kind: tasks, clients: 12, groups: 3}}'
    setup = config("servers", three, {BIG_MODEL}, actors=4)
    seen = {{}}

    def weigh(client, memory, arguments):
        return memory, Contribution({{"w": np.ones(3)}}, 1.0)

    def slow_down(process):
        import time
        import raysim.runtime.ray.processes as module

        mean = module.mean
        module.mean = lambda total: time.sleep(1) or mean(total)

    def look(event):
        if event.kind == "round" and event.stage == "train" and event.round == 6:
            federation = federations[0]
            seen["rows"] = federation.describe()
            ray.get([a.__ray_call__.remote(slow_down) for a in federation._servers.actors])
            federation.reduce(weigh, groups={{k: k % 3 for k in range(12)}})
            seen["intervals"] = federation._servers.intervals

    spread = attempt(setup, look)
    drained = attempt(config("drained", {BIG_MODEL}, actors=2), drain("drained"))
    tell(local=local(three, {BIG_MODEL}), spread=spread, head=cluster.head_node.node_id, **seen,
         plain=local({BIG_MODEL}), drained=drained, events=events("drained"),
         log=open(f"{{HOME}}/drained/run.log").read(), groups=groups_left())
    """
    return in_cluster([{"num_cpus": 0}, {"num_cpus": 2}, {"num_cpus": 2}], LOSE + _plain(script))


def test_every_group_has_a_server_near_its_clients_and_none_is_on_the_head(two_workers):
    servers = [row for row in two_workers["rows"] if row["role"] == "server"]

    assert [row["name"] for row in servers] == [f"quickstart/server-group-{m}" for m in range(3)]
    assert two_workers["head"] not in {row["node_id"] for row in servers}
    assert two_workers["spread"].get("digest") == two_workers["local"], two_workers["spread"]


def test_servers_work_at_the_same_time(two_workers):
    spans = list(two_workers["intervals"].values())

    assert len(spans) == 3
    assert max(begin for begin, _ in spans) < min(end for _, end in spans), spans


def test_a_drained_node_is_left_at_a_commit_and_nothing_is_lost(two_workers):
    facts = two_workers["drained"]

    assert facts.get("digest") == two_workers["plain"], facts
    assert facts["restarts"] == 0
    assert {event["cause"] for event in events(two_workers, "moved")} == {"drained"}
    assert events(two_workers, "lost") == []
    assert "models were lost" not in two_workers["log"]
    assert two_workers["groups"] == []


JOURNEY = """
import random
import raysim.experiment.experiment as experiment
import raysim.runtime.ray.hosts as module

module.LOOK_S = 0.0  # at every round: they are short
federations, make = [], experiment.make_federation
experiment.make_federation = lambda *a, **k: federations.append(make(*a, **k)) or federations[-1]
nodes = list(workers)


def travel(seed, rounds):
    rng = random.Random(seed)
    moments = sorted(rng.sample(range(1, rounds), 6))
    plan = dict(zip(moments, ["join", "join", "join", *rng.sample(["drain", "drain", "kill"], 3)]))

    def listen(event):
        hosts = federations[-1]._hosts
        coming = [host.coming for host in hosts.all if host.coming is not None]
        ray.wait(coming, num_returns=len(coming), timeout=60) if coming else None
        what = plan.get(event.round) if (event.kind, event.stage) == ("round", "train") else None
        if what == "join":
            nodes.append(cluster.add_node(num_cpus=1))
        elif what is not None:
            taken = {host.row["node_id"] for host in hosts.there()}
            victim = rng.choice([node for node in nodes if node.node_id in taken])
            nodes.remove(victim)
            empty(victim) if what == "drain" else cluster.remove_node(victim, allow_graceful=False)
            while what == "kill" and victim.node_id in alive():
                time.sleep(0.1)

    return listen


told = {}
for seed, method in enumerate(["fb_nll", "fedrn", "rhfl"]):
    short = [f"method={method}", "train.rounds=16", "train.epochs=1"]
    told[method] = attempt(config(method, *short, actors="auto"), travel(seed, 16))
    told[method] |= {"local": local(*short), "events": events(method), "groups": groups_left()}
    for node in nodes[1:]:
        cluster.remove_node(node)
    del nodes[1:]
    ray.shutdown()
tell(**told)
"""


def test_a_run_follows_nodes_that_come_and_go(in_cluster):
    told = in_cluster([{"num_cpus": 0}, {"num_cpus": 1}], LOSE + JOURNEY, timeout=500)

    for method, facts in told.items():
        assert facts.get("digest") == facts["local"], (method, facts)
        causes = {event["cause"] for event in events(facts, "moved")}
        assert causes == {"joined", "drained", "lost"}, method
        lost = [event for event in events(facts, "lost") if "client" in event["actor"]]
        assert len(lost) == 1, method
        assert facts["groups"] == []


def test_two_runs_at_once_on_two_cpus_both_finish(in_cluster):
    script = """
    import subprocess

    def start(folder):
        line = [sys.executable, "-m", "raysim", "run", "quickstart", "train.rounds=6",
                f"output={HOME}/{folder}", f"runtime={{kind: ray, address: '{cluster.address}'}}"]
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    said = [run.communicate()[1] for run in [start("one"), start("two")]]
    assert all(os.path.exists(f"{HOME}/{f}/result.json") for f in ("one", "two")), said
    digests = [json.load(open(f"{HOME}/{f}/result.json"))["digest"] for f in ("one", "two")]
    homes = [len([r for r in rows(f) if r["role"] == "clients"]) for f in ("one", "two")]
    tell(local=local(), digests=digests, actors=homes, said=said)
    """
    facts = in_cluster([{"num_cpus": 2}], _plain(script))

    assert facts["digests"] == [facts["local"]] * 2
    assert facts["actors"] == [2, 2]  # one waited for the other


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

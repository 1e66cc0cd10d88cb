"""Fifty kills at seeded random moments over one run of sixty rounds: the same bits."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

CHAOS = """
import itertools, random, signal, subprocess, threading, time, traceback
import raysim.experiment.experiment as experiment

ROUNDS, KILLS, SEED = 60, 50, 7
LONG = [f"train.rounds={ROUNDS}", "train.epochs=300"]
federations, kills = [], []
make = experiment.make_federation
experiment.make_federation = lambda *a, **k: federations.append(make(*a, **k)) or federations[-1]


class Worker:
    '''A raylet in a process group of its own, so that a thread can start and kill it.'''

    numbers = itertools.count()

    def __init__(self):
        self.mark = f"worker{next(self.numbers)}"
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2",
                f"--address={cluster.address}", f"--resources={json.dumps({self.mark: 1})}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        while not self.node_id:  # two that start together may take the same port, and one ends
            self.process = subprocess.Popen(line, start_new_session=True, **quiet)
            while self.process.poll() is None and not self.node_id:
                time.sleep(0.2)

    @property
    def node_id(self):
        found = [n["NodeID"] for n in ray.nodes() if n["Alive"] and self.mark in n["Resources"]]
        return found[0] if found else None

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)


class Killer(threading.Thread):
    '''Kills one thing in each of fifty rounds, a random part of a round's time after it began.'''

    def __init__(self):
        super().__init__(daemon=True)
        rng = random.Random(SEED)
        victims = ["client"] * 37 + ["server"] * 7 + ["node"] * 6
        rng.shuffle(victims)
        rounds = sorted(rng.sample(range(4, ROUNDS), KILLS))
        self.plan = {r: (v, rng.random(), rng.random()) for r, v in zip(rounds, victims)}
        self.began, self.round, self.seconds = threading.Condition(), 0, []
        self.left = sorted(self.plan)

    def listen(self, event):
        if event.kind == "round" and event.stage == "train":
            with self.began:
                self.round = event.round + 1
                self.seconds.append(event.record.seconds)
                self.began.notify_all()
                overdue = lambda: self.left and self.left[0] <= event.round
                self.began.wait_for(lambda: not overdue(), timeout=60)  # no kill is left out

    def run(self):
        for wanted, (victim, moment, which) in sorted(self.plan.items()):
            with self.began:
                while self.round < wanted:
                    self.began.wait()
            usual = sorted(self.seconds[:4])[2]  # as long as rounds without trouble
            if victim == "client":  # during the clients' work; others at any time of a round
                until = time.monotonic() + 1
                while not self.busy() and time.monotonic() < until:
                    time.sleep(0.005)
            time.sleep(moment * usual * (0.4 if victim == "client" else 1.0))
            try:
                getattr(self, victim)(which)
            except Exception:
                kills[-1]["broken"] = traceback.format_exc()
            with self.began:
                self.left.remove(wanted)
                self.began.notify_all()

    def busy(self):
        return [host for host in federations[0]._hosts.there() if host.in_flight is not None]

    def client(self, which):
        hosts = federations[0]._hosts.there()
        alive = [host for host in hosts if os.path.exists(f"/proc/{host.row['pid']}")]
        alive = [h for h in alive if h.in_flight is not None] or alive  # at work, if one is
        host = alive[int(which * len(alive))]
        kills.append(self.struck(host) | {"victim": "client"})
        self.kill(host.row["pid"])

    def struck(self, host):
        return {"actor": f"client actor {host.number}", "call": host.in_flight}

    def server(self, which):
        pids = [row["pid"] for row in federations[0]._servers.describe()]
        pids = [pid for pid in pids if os.path.exists(f"/proc/{pid}")] or pids
        kills.append({"victim": "server", "call": None})
        self.kill(pids[int(which * len(pids))])

    def node(self, which):
        ready = [worker for worker in raylets if worker.node_id]
        victim = ready[int(which * len(ready))]
        there = [h for h in self.busy() if h.row["node_id"] == victim.node_id]
        struck = self.struck(there[0]) if there else {"actor": "", "call": None}
        kills.append(struck | {"victim": "node"})
        raylets.remove(victim)
        victim.kill()
        threading.Thread(target=lambda: raylets.append(Worker()), daemon=True).start()

    def kill(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            kills[-1]["missed"] = True  # it was dead already and not yet missed


ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False, namespace="raysim")
raylets = [Worker() for _ in range(3)]
killer = Killer()
killer.start()
setup = config("chaos", *LONG, actors=5, servers=2, max_restarts=20)
summary = Experiment(setup).run(listeners=[killer.listen]).summary
killer.join(60)
for worker in raylets:
    worker.kill()
log = [json.loads(line) for line in open(f"{HOME}/chaos/events.jsonl")]
lost = [entry for entry in log if entry.get("event") == "lost"]
back = [entry for entry in log if entry.get("event") == "back"]
tell(
    local=local(*LONG), digest=summary["digest"], restarts=summary["restarts"], kills=kills,
    lost=lost, back=len(back), rounds=len(open(f"{HOME}/chaos/rounds.jsonl").readlines()),
)
"""


def test_fifty_kills_in_sixty_rounds_change_nothing(in_cluster):
    facts = in_cluster([{"num_cpus": 1}], CHAOS, timeout=1200)

    broken = [kill["broken"] for kill in facts["kills"] if "broken" in kill]
    assert not broken, broken[0]
    kills = [kill for kill in facts["kills"] if "missed" not in kill]
    lost = {(entry["actor"], entry["call"]) for entry in facts["lost"]}
    in_flight = [k for k in kills if k["call"] is not None and (k["actor"], k["call"]) in lost]
    victims = [kill["victim"] for kill in kills]
    print(
        f"{len(kills)} kills ({victims.count('server')} servers, {victims.count('node')} nodes), "
        f"{len(in_flight)} in flight, {facts['restarts']} restarts, {facts['back']} returns"
    )
    assert facts["digest"] == facts["local"]
    assert len(facts["kills"]) == 50
    assert len(in_flight) >= 30
    assert victims.count("server") >= 5
    assert victims.count("node") >= 5
    assert facts["restarts"] >= len(in_flight)

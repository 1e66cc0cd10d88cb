"""Studies on a cluster: all nodes work, a killed worker is replaced, the bits stay."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
NODES = [{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 1}]

STUDY = """
import threading, time
from pathlib import Path
import psutil
from raysim.cli.main import main

LONG = ["train.rounds=40", "train.epochs=10"]
os.chdir(HOME)
ran, killed, seen = {}, [], threading.Event()


def watch():
    # Tasks carry their names as process titles; the parent of a worker is its raylet.
    while not seen.wait(0.05):
        for process in psutil.process_iter(["cmdline", "ppid"]):
            title = " ".join(process.info["cmdline"] or []).strip()
            if not title.startswith("ray::raysim "):
                continue
            ran.setdefault(title, {})[process.pid] = process.info["ppid"]
            records = Path(f"{HOME}/runs/study/single/seed1/rounds.jsonl")
            rounds = records.read_bytes().count(b"\\n") if records.exists() else 0
            if title == "ray::raysim single seed 1" and not killed and rounds > 3:
                killed.append(rounds)
                process.kill()


def raysim(*line):
    try:
        main(list(line))
    except SystemExit as left:
        return left.code


def compare(*more):
    runs = ["--methods", "single,fb_nll", "--seeds", "0-1", "--json"]
    return raysim("compare", "quickstart", "name=study", *LONG, *runs, *more)


def reproduce(folder):
    code = raysim("reproduce", "fedrn/table8", "--seeds", "0-1", "--out", folder)
    files = sorted(Path(folder).rglob("seed*.json"))
    return [code, [json.loads(file.read_text())["values"] for file in files]]


def digests():
    found = sorted(Path(f"{HOME}/runs/study").rglob("result.json"))
    return {str(f.parent.relative_to(HOME)): json.loads(f.read_text())["digest"] for f in found}


threading.Thread(target=watch, daemon=True).start()
code = compare(f"runtime.address={cluster.address}")
os.environ["RAY_ADDRESS"] = cluster.address
tables = [reproduce("far")]
seen.set()
del os.environ["RAY_ADDRESS"]
tables.append(reproduce("near"))
on_cluster = digests()
saved = [load_config(f"{HOME}/{run}/config.yaml").runtime.kind for run in on_cluster]
here = compare("runtime.kind=local", "--force", "--jobs", "2")
processes = {title: len(found) for title, found in ran.items()}
raylets = {raylet for found in ran.values() for raylet in found.values()}
tell(code=code, here=here, killed=killed, processes=processes, raylets=len(raylets),
     tables=tables, on_cluster=on_cluster, in_processes=digests(), saved=saved)
"""


@pytest.fixture(scope="module")
def study(in_cluster):
    return in_cluster(NODES, STUDY, timeout=400)


def test_compare_uses_all_nodes_and_has_the_bits_of_processes_here(study):
    assert (study["code"], study["here"]) == (0, 0)  # with a worker killed on the way
    assert study["raylets"] == 2
    assert len(study["on_cluster"]) == 4
    assert study["on_cluster"] == study["in_processes"]
    assert set(study["saved"]) == {"local"}  # one task a run, no actors


def test_a_killed_worker_is_replaced(study):
    assert len(study["killed"]) == 1
    assert study["processes"] == {
        "ray::raysim single seed 0": 1,
        "ray::raysim single seed 1": 2,
        "ray::raysim fb_nll seed 0": 1,
        "ray::raysim fb_nll seed 1": 1,
        **{f"ray::raysim costs seed {seed}": 1 for seed in (0, 1)},
    }


def test_reproduce_uses_the_cluster_that_ray_names(study):
    far, near = study["tables"]

    assert far == near
    assert far[0] == 0
    assert len(far[1]) == 2


ACTORS = """
import threading, time
from pathlib import Path
import psutil
from raysim.cli.main import main

os.chdir(HOME)
killed = []


def kill_one():
    while not killed:
        time.sleep(0.05)
        records = Path(f"{HOME}/runs/there/single/seed0/rounds.jsonl")
        if not records.exists() or records.read_bytes().count(b"\\n") < 3:
            continue
        for process in psutil.process_iter(["cmdline"]):
            if " ".join(process.info["cmdline"] or []).strip() == "ray::raysim single seed 0":
                killed.append(process.pid)
                process.kill()


def compare(name, runtime):
    config = ["quickstart", f"name={name}", "train.rounds=20", "runtime=" + json.dumps(runtime)]
    try:
        main(["compare", *config, "--methods", "single,fb_nll", "--jobs", "2", "--json"])
    except SystemExit as left:
        return left.code


def told(name, method):
    folder = Path(f"{HOME}/runs/{name}/{method}/seed0")
    actors = json.loads((folder / "environment.json").read_text())["actors"]
    result = json.loads((folder / "result.json").read_text())
    return [result["digest"], sorted(row["role"] for row in actors)]


threading.Thread(target=kill_one, daemon=True).start()
here = {"kind": "local"}
there = {"kind": "ray", "address": cluster.address, "actors": 2}
codes = [compare("there", there), compare("here", here)]
runs = [[told(name, method) for method in ("single", "fb_nll")] for name in ("there", "here")]
tell(codes=codes, runs=runs, killed=len(killed))
"""


def test_runs_with_actors_of_their_own_take_turns_and_have_the_same_bits(in_cluster):
    facts = in_cluster(NODES, ACTORS)  # both want both CPUs, which a killed run must give back

    there, here = facts["runs"]
    assert facts["killed"] == 1
    assert facts["codes"] == [0, 0]
    assert [digest for digest, _ in there] == [digest for digest, _ in here]
    assert all(roles.count("clients") == 2 for _, roles in there)

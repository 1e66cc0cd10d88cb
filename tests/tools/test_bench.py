"""``tools/bench``: every subcommand runs on tiny sizes and says what it must. Nothing is timed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from benchmarks import hog as hog_benchmark  # noqa: E402
from benchmarks.__main__ import SUBCOMMANDS, main  # noqa: E402
from benchmarks.feature_world import FeatureSpec, client_features  # noqa: E402
from benchmarks.memory import TreeMemory, descendants, tree_pss  # noqa: E402
from benchmarks.report import Check, Report, compared  # noqa: E402
from benchmarks.sides import SideFailed, seconds_until, side  # noqa: E402
from benchmarks.workloads import WORKLOADS, quick, run_config  # noqa: E402

BENCH = ROOT / "tools" / "bench"
CHILD = "import sys; sys.stdin.read()"
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "RAYSIM_BENCH_PYTHON": sys.executable}
    command = [str(BENCH), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def measured(*arguments: str) -> dict:
    done = bench(*arguments, "--quick", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def assert_complete(found: dict, name: str) -> None:
    assert found["benchmark"] == name
    assert found["quick"] is True
    assert found["machine"]["packages"]["raysim"]
    assert found["rows"]
    for row in found["rows"]:
        assert row["raysim_s"] > 0
        assert row["reference_s"] > 0
        assert row["ratio"] == pytest.approx(np.median(row["ratios"]))
    for check in found["checks"]:
        assert check["met"] or check["timed"], check
    assert found["missed"] == [c["name"] for c in found["checks"] if not c["met"]]


# ---- the command ---------------------------------------------------------------------------


def test_wrapper_is_executable_and_readable_for_bash():
    assert os.access(BENCH, os.X_OK)
    subprocess.run([shutil.which("bash") or "bash", "-n", str(BENCH)], check=True)


def test_help_names_every_subcommand():
    said = bench("--help")

    assert said.returncode == 0
    assert all(name in said.stdout for name in SUBCOMMANDS)


@pytest.mark.parametrize("wrong", [["fly"], ["train", "--rounds", "2"], ["hog", "--repeats", "0"]])
def test_wrong_usage_is_refused(wrong):
    assert bench(*wrong).returncode == 2


def test_hog_measures_bytes_and_floats():
    found = measured("hog")

    assert_complete(found, "hog")
    assert [row["name"] for row in found["rows"]] == ["uint8 32x32x3", "float64 32x32x3"]
    assert all(row["memory_bytes"] > 1e6 for row in found["rows"])


@pytest.mark.ray
def test_train_ends_with_the_weights_of_the_plain_loop():
    found = measured("train", "--only", "A logistic")

    assert_complete(found, "train")
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["A logistic: weights"]["value"] <= 1e-4
    assert checks["A logistic: weights"]["timed"] is False
    assert checks["A logistic: ratio"]["target"] >= 0.30
    assert found["rows"][0]["memory_bytes"] > 1e8  # the actors count, not only the driver


@pytest.mark.slow
@pytest.mark.ray
def test_train_measures_every_workload_and_what_grows_with_clients_and_rounds():
    found = measured("train", "--long", "--peers")

    assert_complete(found, "train")
    assert [row["name"] for row in found["rows"]] == [w.name for w in WORKLOADS]
    names = " ".join(check["name"] for check in found["checks"])
    for part in ("driver CPU", "time per client", "memory at K=", "memory growth"):
        assert part in names
    assert set(found["facts"]["peers"]) == {"flower", "pfl"}


@pytest.mark.slow
@pytest.mark.ray
def test_similarity_is_that_of_the_float64_loop_on_ray_and_in_process():
    found = measured("similarity", "--large")

    assert_complete(found, "similarity")
    assert len(found["rows"]) == 3
    assert found["facts"]["same R on Ray and in-process"] is True
    assert sum("max abs" in check["unit"] for check in found["checks"]) == 2


@pytest.mark.slow
@pytest.mark.ray
def test_cluster_measures_what_a_round_costs_the_coordinator():
    [point] = measured("cluster")["facts"]["rounds"]

    assert (point["raylets"], point["actors"], point["servers"]) == (1, 2, 1)
    assert 0 < point["driver CPU s"] < point["wall s"]
    assert point["bytes to servers"] > 0


@pytest.mark.slow
@pytest.mark.ray
def test_startup_and_e2e_run_the_command_line():
    assert_complete(measured("startup"), "startup")

    found = measured("e2e")

    assert_complete(found, "e2e")
    phases = {row["name"] for row in found["rows"]}
    assert {"whole command", "setup", "stage group", "stage correct", "stage train"} <= phases


# ---- what decides ---------------------------------------------------------------------------


def test_a_wrong_result_fails_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path))
    right = hog_benchmark.raysim_rows
    monkeypatch.setattr(hog_benchmark, "raysim_rows", lambda images: right(images) + 1e-3)

    assert main(["hog", "--quick"]) == 1
    assert "differ" in capsys.readouterr().err


def test_a_missed_time_does_not_fail_the_command():
    slow = Check("slow", value=2.0, target=1.0)

    assert not slow.met
    assert Report("x", checks=[slow]).is_sound
    assert not Report("x", checks=[Check("wrong", 2.0, 1.0, timed=False)]).is_sound
    assert Check("fast enough", 12.0, 10.0, at_least=True).met


def test_ratio_is_the_median_of_the_pairs():
    row, ratio = compared("x", [[2.0, 4.0, 3.0], [8.0], [1.0]], [[3.0], [4.0], [4.0]])

    assert row.ratios == (1.0, 2.0, 0.25)
    assert ratio == 1.0


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_workloads_train_as_many_clients_as_the_issue_says(workload):
    from raysim.steps.local_training import participants

    config = run_config(workload, rounds=2, runtime="ray")
    chosen = participants(list(range(workload.clients)), config.train, seed=0, round_id=0)

    assert len(chosen) == workload.per_round
    assert config.data.dataset.image_shape == (28, 28, 1)
    assert config.runtime.actors == 2
    assert quick(workload).clients <= 40


# ---- the references -------------------------------------------------------------------------


def test_plain_loop_is_the_mean_of_gradient_steps():
    import torch
    from benchmarks.plain_loop import train_round

    rng = np.random.default_rng(0)
    images = rng.standard_normal((2, 4, 3)).astype(np.float32)
    labels = np.array([[0, 1, 0, 1], [1, 1, 0, 0]])
    clients = [(torch.tensor(x), torch.tensor(y)) for x, y in zip(images, labels, strict=True)]
    module = torch.nn.Linear(3, 2, bias=False)
    start = torch.zeros(6)

    found = train_round(module, start, clients, lr=0.5, batch_size=4, epochs=1)

    # at zero weights softmax is 1/2 everywhere: the gradient is (1/2 - onehot)^T x / n
    steps = [(0.5 - np.eye(2)[y]).T @ x / 4 for x, y in zip(images, labels, strict=True)]
    assert found.numpy() == pytest.approx(-0.5 * np.mean(steps, axis=0).reshape(-1), abs=1e-6)


def test_similarity_loop_agrees_with_raysims_equations():
    from benchmarks.similarity_loop import similarity

    from raysim.core.similarity import similarity_matrix
    from raysim.core.spectra import spectrum

    spec = FeatureSpec(samples=60, dim=20)
    features = [client_features(spec, k) for k in range(4)]
    matrix = similarity_matrix([spectrum(f) for f in features], rank=5)

    assert similarity(features[0], features[3], 5) == pytest.approx(matrix[0, 3], abs=1e-12)
    assert similarity(features[0], features[1], 5) == pytest.approx(matrix[0, 1], abs=1e-12)
    assert matrix[0, 3] > matrix[0, 1]  # 0 and 3 share a group


def test_feature_rows_do_not_depend_on_who_asks_for_them_together():
    world = FeatureSpec(samples=5, dim=8).open()
    ids = np.array([12, 3, 11, 4])

    rows = world.features("grouping", ids)

    assert np.array_equal(rows[1], world.features("grouping", np.array([3]))[0])
    assert np.array_equal(rows[2], client_features(FeatureSpec(5, 8), 2)[1])


def test_gemm_rate_is_a_number_of_operations_per_second():
    from benchmarks.gemm import numpy_rate, torch_rate

    assert numpy_rate(64, threads=1) > 1e6
    assert torch_rate(64, threads=1) > 1e6


# ---- sides and memory -----------------------------------------------------------------------


def test_memory_counts_descendants_and_nobody_else():
    with side("-c", CHILD) as child, side("-c", CHILD) as other:
        assert set(descendants(child.pid)) == {child.pid}
        assert {child.pid, other.pid} <= set(descendants(os.getpid()))
        assert os.getppid() not in descendants(os.getpid())
        assert tree_pss(os.getpid()) > tree_pss(child.pid) > 0
    assert tree_pss(child.pid) == 0


def test_peak_memory_is_seen_although_it_is_given_back():
    grow = "import sys; b = bytearray(80_000_000); print('{}', flush=True); sys.stdin.readline()"
    shrink = "; del b; print('{}', flush=True); sys.stdin.read()"
    with side("-c", grow + shrink) as child, TreeMemory(child.pid) as memory:
        child.hear()
        memory.sample()
        child.ask(now="shrink")
        after = memory.sample()

    assert memory.peak > 80_000_000 > after


def test_side_that_ends_early_says_why():
    with side("-c", "raise ValueError('no room')") as child, pytest.raises(SideFailed) as wrong:
        child.ask(do="anything")

    assert "no room" in str(wrong.value)


def test_side_answers_in_turn_and_reports_errors():
    with side("-c", ECHO) as child:
        assert child.ask(number=1) == {"number": 1}
        with pytest.raises(SideFailed, match="out of paper"):
            child.ask(error="out of paper")


def test_command_without_the_awaited_line_is_an_error():
    seconds, memory = seconds_until([sys.executable, "-c", "print('round 1')"], "round 1")

    assert seconds > 0
    assert memory >= 0
    with pytest.raises(SideFailed):
        seconds_until([sys.executable, "-c", "print('round 2')"], "round 1")

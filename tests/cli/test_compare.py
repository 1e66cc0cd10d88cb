"""``raysim compare``: the same start for every method, one table, one report, nothing lost."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim.config import load_config
from raysim.data.world import DriverData
from raysim.errors import ConfigError
from raysim.experiment import Experiment
from raysim.models.params import initial_tree
from raysim.storage.checkpoint import write_object
from raysim.studies.comparison import Entry, cells_of, parse_entries, parse_seeds

SHORT = ("train.rounds=2", "train.epochs=1", "train.participation=0.1", "name=short")
"""One client trains in a round, so most models are still what they began as."""
METHODS, SEEDS = ("optimum", "local_only"), (0, 2)
LINE = ("quickstart", "--methods", ",".join(METHODS), "--seeds", "0,2", *SHORT)
T_ONE = 12.706204736
"""Student's t of one degree of freedom for 95 per cent."""
BROKEN = '''
from raysim.methods import METHODS
from raysim.methods.baselines import Single
from raysim.protocols import Stage
from raysim.settings import settings

def fail(context, state):
    raise ZeroDivisionError("on purpose")

@METHODS.register("broken")
@settings
class Broken(Single):
    """Fits any data, then fails."""

    def stages(self, config):
        return (Stage("group", 1, fail),)
'''


@pytest.fixture(scope="module")
def finished(_own_cache, tmp_path_factory):
    """A folder with a finished comparison, and what it told as JSON; read-only."""
    folder = tmp_path_factory.mktemp("finished")
    code, out, err = run_apart(folder, *LINE, "--json")
    assert code == 0, err
    return folder, json.loads(out.splitlines()[-1]), err


def read(folder: Path, method: str, seed: int, name: str = "result.json"):
    path = folder / "runs" / "short" / method / f"seed{seed}" / name
    return np.load(path) if name.endswith("npy") else json.loads(path.read_text())


def accuracies(folder: Path, method: str) -> list[float]:
    return [100 * read(folder, method, seed)["accuracy"]["mean"] for seed in SEEDS]


# ---- the same start --------------------------------------------------------------------------


def test_given_labels_depend_on_the_seed_and_not_on_the_method(finished):
    counts, given = {}, {}
    for method in METHODS:
        for seed in SEEDS:
            counts[method, seed] = read(finished[0], method, seed, "artifacts/labels_given.npy")
            saved = load_config(finished[0] / "runs/short" / method / f"seed{seed}/config.yaml")
            given[method, seed] = np.concatenate(DriverData(saved.data, saved.seed).noisy.given)

    for found in (counts, given):
        for seed in SEEDS:
            np.testing.assert_array_equal(found["optimum", seed], found["local_only", seed])
        assert not np.array_equal(found["optimum", 0], found["optimum", 2])


def test_every_method_starts_from_the_same_weights(finished, tmp_path):
    for seed in SEEDS:
        config = load_config("quickstart", [f"seed={seed}"])
        start = write_object(str(tmp_path), initial_tree(config.model, (8, 8, 1), 10, seed))

        for method in METHODS:  # two of 12 clients trained; the other groups hold the start
            stored = list(read(finished[0], method, seed)["digest"]["models"].values())
            assert stored.count(start) == len(stored) - moved(finished[0], method, seed)


def moved(folder: Path, method: str, seed: int) -> int:
    """Number of groups that one of the round's clients belongs to."""
    from raysim.steps.local_training import participants

    config = load_config("quickstart", list(SHORT))
    groups = read(folder, method, seed)["groups"]
    rounds = [participants(list(range(12)), config.train, seed=seed, round_id=r) for r in range(2)]
    return len({groups[k] for chosen in rounds for k in chosen})


def test_a_run_has_the_bits_of_raysim_run(finished, tmp_path):
    overrides = ["method=local_only", "seed=2", f"output={tmp_path / 'run'}", "runtime.kind=local"]

    alone = Experiment(load_config("quickstart", [*SHORT, *overrides])).run()

    assert read(finished[0], "local_only", 2)["digest"] == alone.summary["digest"]


# ---- table and report ------------------------------------------------------------------------


def test_the_table_has_mean_sd_and_paired_difference_with_interval(finished):
    folder, told, said = finished
    first, second = (accuracies(folder, method) for method in METHODS)
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    reach = T_ONE * statistics.stdev(gaps) / math.sqrt(2)

    rows = {row["method"]: row for row in told["methods"]}

    assert "4 of 4 runs to do" in said
    assert list(rows) == list(METHODS)
    assert rows["optimum"]["difference"] is None
    assert rows["optimum"]["seeds"] == list(SEEDS)
    assert 100 * rows["optimum"]["accuracy"]["mean"] == pytest.approx(sum(first) / 2)
    sd = abs(first[0] - first[1]) / math.sqrt(2)
    assert 100 * rows["optimum"]["accuracy"]["sd"] == pytest.approx(sd)
    difference = rows["local_only"]["difference"]
    assert 100 * difference["mean"] == pytest.approx(sum(gaps) / 2)
    assert 100 * difference["low"] == pytest.approx(sum(gaps) / 2 - reach)
    assert 100 * difference["high"] == pytest.approx(sum(gaps) / 2 + reach)


def test_the_report_is_a_page_with_the_same_numbers(finished):
    folder, told, _ = finished
    (file,) = told["report"]

    page = (folder / file).read_text(encoding="utf-8")

    for method in METHODS:
        mean, sd = (f(accuracies(folder, method)) for f in (statistics.fmean, statistics.stdev))
        assert method in page
        assert f"{mean:.2f} ± {sd:.2f}" in page


# ---- again -----------------------------------------------------------------------------------


def test_what_is_there_is_kept_or_refused(finished, command, tmp_path):
    shutil.copytree(finished[0] / "runs", tmp_path / "runs")
    broken = tmp_path / "runs/short/optimum/seed2"
    (broken / "result.json").unlink()
    shutil.rmtree(tmp_path / "runs/short/local_only/seed0")
    kept = tmp_path / "runs/short/optimum/seed0/result.json"
    before = kept.stat().st_mtime_ns

    code, _, err = command("compare", tmp_path, *LINE)
    assert code == 2
    assert "3 of 4 run directories hold runs already" in err
    assert "--resume to keep what is finished" in err

    code, _, err = command("compare", tmp_path, *LINE, "train.lr=0.01", "--resume")
    assert code == 2
    assert "train.lr (now 0.01, was 0.05)" in err

    code, out, err = command("compare", tmp_path, *LINE, "--resume")
    assert code == 0, err
    assert "2 of 4 runs to do" in out
    assert kept.stat().st_mtime_ns == before
    for method in METHODS:
        for seed in SEEDS:
            ours, theirs = read(tmp_path, method, seed), read(finished[0], method, seed)
            assert ours["digest"] == theirs["digest"]
    (row,) = [line for line in out.splitlines() if line.startswith("local_only")]
    mean, base = (statistics.fmean(accuracies(tmp_path, m)) for m in ("local_only", "optimum"))
    assert row.split()[2] == f"{mean:.2f}"
    assert f"{mean - base:+.2f}" in row


def test_one_failure_does_not_stop_the_others(finished, tmp_path):
    (tmp_path / "own_broken.py").write_text(BROKEN)
    done = tmp_path / "runs/short/optimum/seed0"
    shutil.copytree(finished[0] / "runs/short/optimum/seed0", done)
    shutil.copytree(finished[0] / "runs/short/local_only", done.parents[1] / "local_only")
    shutil.rmtree(done.parents[1] / "local_only/seed2")
    line = ("quickstart", "--methods", "optimum,broken,local_only", "--import", "own_broken")

    code, out, err = run_apart(tmp_path, *line, *SHORT, "--resume")

    assert code == 1
    assert "1 of 3 runs to do" in out  # a module that joins later leaves finished runs alone
    assert "raysim: broken seed 0 failed: ZeroDivisionError: on purpose" in err
    assert "Traceback" in (tmp_path / "runs/short/comparison/errors/broken-seed0.txt").read_text()
    assert "no run finished" in next(x for x in out.splitlines() if x.startswith("broken "))
    assert (tmp_path / "runs/short/comparison/report.html").exists()


def run_apart(folder: Path, *arguments: object) -> tuple[int, str, str]:
    """Run ``raysim compare`` in a process of its own."""
    line = [sys.executable, "-m", "raysim", "compare", *map(str, arguments)]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


# ---- refused before anything starts ----------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--methods", "fbnll,single"], ["--methods fbnll", "did you mean fb_nll?"]),
        (["--methods", "single,single"], ["'single' twice", "second:single"]),
        (["--methods", "a/b:single"], ["--methods must be names", "got 'a/b:single'"]),
        (["--methods", "single", "--seeds", "3"], ["0-2 for 3 seeds", "3-3 for seed 3"]),
        (["--methods", "single", "--seeds", "2-1"], ["--seeds", "got '2-1'"]),
        (["--methods", "single", "--seeds", "0-99999999999"], ["--seeds", "at most 1000"]),
        (["--methods", "single", "--out", "/proc/raysim/"], ["/proc", "choose another --out"]),
        (["--methods", "single", "--seeds", "0-1", "seed=3"], ["contradict each other"]),
        (["--methods", "single", "--resume", "--force"], ["contradict each other"]),
        (["--methods", "single", "method=fb_nll"], ["what --methods decides"]),
        (["--methods", "single", "--out", "x.pdf"], ["--out must end in"]),
        (["--methods", "single", "train.round=3"], ["did you mean rounds?"]),
        (
            ["--methods", "fb_nll,single", "method.grouping.rank=3"],
            ["--methods single: method.grouping is not a setting", "--with LABEL KEY=VALUE"],
        ),
        (
            ["--methods", "single,fb_nll", "data.server.per_class=0"],
            ["--methods fb_nll: data.server.per_class is 0"],
        ),
        (["--methods", "single", "--with", "singel", "train.lr=1"], ["did you mean single?"]),
        (["--methods", "single", "--with", "single", "seed=1"], ["give it for all"]),
        (["--methods", "single", "--with", "single", "method=ifca"], ["change it there"]),
        (["--methods", "single,optimum", "output=x/{seed}"], ["optimum seed 0", "{method}"]),
        (["--methods", "single", "--import", "absent"], ["there is no module 'absent'"]),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(command, tmp_path, arguments, parts):
    code, out, err = command("compare", tmp_path, "quickstart", *arguments)

    assert (code, out) == (2, "")
    assert err.startswith("raysim: ")
    assert [part for part in parts if part not in err] == [], err
    assert list(tmp_path.iterdir()) == []


def test_settings_of_one_method_make_a_variant_with_a_folder_of_its_own():
    entries = parse_entries("single,prox:single", [("prox", "train.proximal=0.1")])

    runs = cells_of("quickstart", ["train.rounds=3"], entries, seeds=(0, 1))

    assert entries[1] == Entry("prox", "single", ("train.proximal=0.1",))
    assert [run.title for run in runs] == [
        *("single seed 0", "prox seed 0", "single seed 1", "prox seed 1"),
    ]
    assert [run.config.train.proximal for run in runs] == [0.0, 0.1, 0.0, 0.1]
    assert str(runs[3].config.run_dir()) == "runs/quickstart/prox/seed1"


def test_features_may_differ_between_methods_and_nothing_else_of_the_data():
    own = "data.features={kind: hog, enlarge: 2}"

    assert parse_entries("a:rcc_pfl,b:rcc_pfl", [("b", own)])[1].overrides == (own,)
    with pytest.raises(ConfigError, match="give it for all"):
        parse_entries("a:rcc_pfl", [("a", "data.featuresx=1")])


def test_many_at_once_run_without_ray_and_one_as_the_config_says(tmp_path):
    overrides = ["runtime={kind: ray, actors: 2}", f"output={tmp_path / 'x'}"]
    (run,) = cells_of("quickstart", overrides, [Entry("single", "single")], seeds=None)

    assert run.told(local=True, force=False)["config"]["runtime"]["kind"] == "local"
    assert run.told(local=False, force=False)["config"]["runtime"]["kind"] == "ray"


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", (0,)),
        ("0-4", (0, 1, 2, 3, 4)),
        ("0,2,5", (0, 2, 5)),
        ("3-3,1-3", (3, 1, 2)),
        (None, None),
    ],
)
def test_seeds_are_ranges_or_lists(text, seeds):
    assert parse_seeds(text) == seeds

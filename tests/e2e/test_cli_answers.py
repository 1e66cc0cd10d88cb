"""Verbs that only answer: ls, doctor, help. They are quick and load nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from raysim.cli.listing import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_ls_gives_every_name_with_one_line(cli, kind):
    known = {
        "methods": {"fb_nll", "fb_nll_minus", "rcc_pfl", "optimum", "single", "local_only"},
        "datasets": {
            "digits",
            "synthetic",
            "mnist",
            "fashion_mnist",
            "cifar10",
            "cifar100",
            "svhn",
        },
        "models": {"logistic"},
        "features": {"hog", "pixels", "resnet18", "lite0"},
        "noise": {"class_dependent", "class_independent", "uniform", "file", "none"},
        "partitions": {"tasks", "file"},
        "configs": {"quickstart"},
    }[kind]

    said = cli("ls", kind)

    rows = dict(line.split(None, 1) for line in said.out.splitlines())
    assert said.code == 0
    assert known <= set(rows)
    assert all(text.strip() for text in rows.values())


@pytest.mark.ray
def test_doctor_finds_this_machine_fit(command):
    said = command("doctor", "--json")

    report = json.loads(said.out)
    assert said.code == 0, said.out
    assert report["fit"] is True
    assert {"packages", "disk", "cache", "data", "ray"} <= {f["what"] for f in report["findings"]}


@pytest.mark.ray
def test_doctor_says_what_is_not_fit_and_leaves_with_3(cli, ray_session, monkeypatch):
    monkeypatch.setenv("RAYSIM_CACHE", "/proc/raysim")

    said = cli("doctor")

    failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]
    assert said.code == 3
    assert any("cache" in line and "set RAYSIM_CACHE" in line for line in failed)
    assert said.out.splitlines()[-1].startswith("not fit")


@pytest.mark.parametrize(
    "verb", [(), ("run",), ("show",), ("ls",), ("doctor",), ("data", "export")]
)
def test_help_is_readable(cli, verb):
    said = cli(*verb, "--help")

    assert said.code == 0
    assert said.out.startswith("Usage: raysim")
    assert "\\b" not in said.out


def test_the_examples_of_run_stand_on_lines_of_their_own(cli):
    lines = [line.strip() for line in cli("run", "--help").out.splitlines()]

    assert "raysim run quickstart" in lines


@pytest.mark.parametrize(
    "line", ["--help", "run --help", "ls methods", "ls datasets", "run quickstart train.lr=-1"]
)
def test_quick_answers_load_no_heavy_package(line):
    code = (
        "import sys\nfrom raysim.cli.main import main\n"
        f"try:\n    main({line.split()!r})\nexcept SystemExit:\n    pass\n"
        "heavy = {'ray', 'torch', 'sklearn', 'skimage', 'scipy.cluster'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.splitlines()[-1] == "[]"


def test_a_plan_is_shown_before_anything_runs(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    said = cli("show", "--plan", "quickstart")
    wrong = cli("show", "--plan", "quickstart", "runtime.actors=0")

    assert (said.code, said.out) == (
        0,
        "12 clients in this process; no actor starts (a small job is quicker without actors)\n",
    )
    assert wrong.code == 2
    assert "runtime.actors" in wrong.err
    assert list(tmp_path.iterdir()) == []


def test_brackets_in_a_path_are_shown_as_they_are(tmp_path, capsys):
    from raysim.cli.tables import print_result

    summary = {
        "method": "single",
        "dataset": "digits",
        "seed": 0,
        "rounds": 1,
        "ari": None,
        "accuracy": {"mean": 0.5, "std": 0.0},
        "labels": {"noise_before": 0.0, "noise_after": 0.0},
        "bytes": {"up": 0, "down": 0},
        "seconds": {"total": 1.0},
        "run_dir": "o[/x]/[red]r",
    }
    print_result(summary)

    assert "o[/x]/[red]r" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "kind", "why"),
    [
        ("10.0.0.1:6379", "ray", "RAY_ADDRESS is 10.0.0.1:6379"),
        ("http://10.0.0.1:8265", "local", "a small job is quicker without actors"),
        ("", "local", "a small job is quicker without actors"),
    ],
)
def test_the_cluster_that_ray_names_is_used_by_small_jobs_too(monkeypatch, variable, kind, why):
    from raysim.config import load_config
    from raysim.data.world import DriverData
    from raysim.experiment.experiment import runtime_choice

    monkeypatch.setenv("RAY_ADDRESS", variable)
    config = load_config("quickstart").resolved()

    assert runtime_choice(config, DriverData(config.data, config.seed)) == (kind, why)


def test_a_run_says_where_its_clients_live_and_why(cli, base, tmp_path):
    said = cli("run", *base, f"output={tmp_path / 'run'}")

    assert "runtime local: runtime.kind is local" in said.out.splitlines()

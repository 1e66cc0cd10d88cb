"""The command line as its users and their scripts see it."""

from __future__ import annotations

import json
import re
import sys

import pytest

PROMISED = {
    "method": str,
    "dataset": str,
    "seed": int,
    "rounds": int,
    "accuracy": {"mean": float, "std": float, "per_client": list},
    "ari": float,
    "groups": list,
    "labels": {"noise_before": float, "noise_after": float},
    "bytes": {"up": int, "down": int},
    "seconds": {"setup": float, "rounds": float, "total": float},
    "run_dir": str,
}
ROUND = re.compile(r"^(group|correct|train) \d+/\d+  .*\d s$")


@pytest.fixture
def result(cli, base, tmp_path):
    """Return a function that runs the base config and returns what --json printed."""

    def run(*more, folder="run"):
        said = cli("run", *base, f"output={tmp_path / folder}", "--json", "--quiet", *more)
        assert said.code == 0, said.err
        return json.loads(said.out.splitlines()[-1])

    return run


def has_shape(value, shape):
    if isinstance(shape, dict):
        return all(key in value and has_shape(value[key], kind) for key, kind in shape.items())
    return isinstance(value, shape)


# ---- run -----------------------------------------------------------------------------------


def test_json_is_the_last_line_and_holds_what_is_promised(command, base, tmp_path):
    said = command("run", *base, f"output={tmp_path / 'run'}", "--json")

    assert said.code == 0
    *before, last = said.out.splitlines()
    found = json.loads(last)
    assert before == []  # progress goes to standard error
    assert has_shape(found, PROMISED)
    assert (found["method"], found["dataset"], found["seed"], found["rounds"]) == (
        "fb_nll",
        "digits",
        0,
        2,
    )
    assert len(found["accuracy"]["per_client"]) == len(found["groups"]) == 12
    assert found["accuracy"]["mean"] == pytest.approx(sum(found["accuracy"]["per_client"]) / 12)
    assert found["run_dir"] == str(tmp_path / "run")
    assert found == json.loads((tmp_path / "run" / "result.json").read_text())
    assert sum(bool(ROUND.match(line)) for line in said.err.splitlines()) == 4


def test_a_pipe_gets_one_plain_line_per_round_and_the_table(cli, base, tmp_path):
    said = cli("run", *base, f"output={tmp_path / 'run'}")

    lines = said.out.splitlines()
    rounds = [line for line in lines if ROUND.match(line)]
    assert [line.split("  ")[0] for line in rounds] == [
        "group 1/1",
        "correct 1/1",
        "train 1/2",
        "train 2/2",
    ]
    assert "ARI 1.00" in rounds[0]
    assert re.search(r"noise 2\d\.\d % -> \d\.\d %", rounds[1])
    assert re.search(r"acc \d\d\.\d ± \d", rounds[3])
    assert "accuracy %" in lines[-3]
    assert lines[-2].split()[:4] == ["fb_nll", "digits", "0", "2"]
    assert lines[-1].split() == ["run", "directory", str(tmp_path / "run")]
    assert "\x1b" not in said.out
    assert said.err == ""


def test_quiet_leaves_only_the_result(cli, base, tmp_path):
    said = cli("run", *base, f"output={tmp_path / 'run'}", "--quiet")

    assert len(said.out.splitlines()) == 3
    assert said.err == ""


def test_a_terminal_gets_live_progress(base, on_terminal, tmp_path):
    line = [sys.executable, "-m", "raysim", "run", *base, f"output={tmp_path / 'run'}"]

    code, text = on_terminal(line, 160)

    assert code == 0
    assert "\x1b[" in text
    assert "\x1b[36m▸\x1b[0m group" in text  # the phase that is going on
    assert "4/4  0:" in text  # rounds and time
    assert re.search(r"accuracy \x1b\[0m.*\d\d\.\d % ± \d", text)
    assert "run directory" in text


def test_force_replaces_the_old_run(result, tmp_path):
    first = result()
    (tmp_path / "run" / "artifacts" / "stranger.npy").write_bytes(b"of the old run")

    second = result("--force", "seed=1")

    assert (first["seed"], second["seed"]) == (0, 1)
    assert not (tmp_path / "run" / "artifacts" / "stranger.npy").exists()
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 4


def test_resuming_a_finished_run_gives_its_result_again(cli, picture, base, result, tmp_path):
    first, before = result(), picture(tmp_path)

    said = cli("run", *base, f"output={tmp_path / 'run'}", "--resume", "--json")

    assert said.code == 0
    assert json.loads(said.out) == first
    assert picture(tmp_path) == before


@pytest.mark.parametrize("lr", ["1e12", "1e30"])
def test_a_diverging_run_names_client_round_and_remedy(cli, base, tmp_path, lr):
    said = cli("run", *base, f"output={tmp_path / 'run'}", "--quiet", f"train.lr={lr}")

    assert said.code == 1
    assert re.search(r"client \d+ failed in train round 1/2", said.err)
    assert "lower train.lr" in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "run" / "result.json").exists()


# ---- show ----------------------------------------------------------------------------------


def test_show_one_run(cli, old):
    said = cli("show", old)

    assert said.code == 0
    assert said.out.splitlines()[1].split()[:2] == ["fb_nll", "digits"]
    assert str(old) in said.out


def test_show_many_runs_below_a_folder_and_the_unfinished(cli, result, tmp_path):
    result(folder="runs/a")
    result("method=single", folder="runs/b")
    result(folder="runs/c")
    (tmp_path / "runs" / "c" / "result.json").unlink()

    said = cli("show", tmp_path / "runs")

    lines = said.out.splitlines()
    assert said.code == 0
    assert [line.split()[0] for line in lines[1:3]] == ["fb_nll", "single"]
    assert (
        lines[3]
        == f"{tmp_path / 'runs' / 'c'}: not finished, 4 rounds recorded; go on with --resume"
    )


def test_show_as_json_gives_one_object_per_run(cli, result, tmp_path):
    results = [result(folder="runs/a"), result("seed=1", folder="runs/b")]

    said = cli("show", tmp_path / "runs", "--json")

    assert [json.loads(line) for line in said.out.splitlines()] == results


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a run"])
def test_show_names_a_missing_run(cli, old, tmp_path, beside):
    said = cli("show", *([old] if beside else []), tmp_path / "nothing")

    assert said.code == 2
    assert f"no run directory at {tmp_path / 'nothing'}" in said.err
    assert "raysim run" in said.err


# ---- data ----------------------------------------------------------------------------------


def test_an_exported_split_repeats_the_run(cli, result, tmp_path):
    path = tmp_path / "split.npz"
    said = cli("data", "export", "quickstart", path)
    drawn = result(folder="drawn")

    read = result(
        f"data.partition={{kind: file, path: {path}}}", "data.noise={kind: file}", folder="read"
    )

    assert (said.code, said.out) == (0, f"12 clients written to {path}\n")
    assert read["groups"] == drawn["groups"]
    assert read["accuracy"] == drawn["accuracy"]
    assert read["labels"] == drawn["labels"]


def test_fetching_an_unknown_name_lists_the_known_ones(cli):
    said = cli("data", "fetch", "nosuch")

    assert said.code == 2
    assert "'nosuch'" in said.err
    assert "mnist" in said.err
    assert "Traceback" not in said.err

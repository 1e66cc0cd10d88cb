"""The Python interface: rounds one at a time, results, frames."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim import Experiment, RunResult, load_config, load_result, load_results
from raysim.errors import DataError, EnvironmentNotFit, OutputError
from raysim.storage.checkpoint import read_manifest

SMALL = (
    "data.partition={kind: tasks, clients: 6, groups: 2}",
    "train.rounds=3",
    "train.epochs=1",
    "runtime.kind=local",
    "checkpoint.every=10",
)


def experiment(where: Path, method: str = "fb_nll", *overrides: str) -> Experiment:
    return Experiment(
        load_config("quickstart", [*SMALL, f"method={method}", f"output={where}", *overrides])
    )


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> RunResult:
    """FB-NLL: 1 round of grouping, 1 of correction, 3 of training."""
    return experiment(tmp_path_factory.mktemp("api") / "fb_nll").run()


@pytest.fixture(scope="module")
def single(unbroken) -> RunResult:
    return experiment(Path(unbroken.run_dir).parent / "single", "single", "seed=1").run()


# ---- rounds one at a time ----------------------------------------------------------------------


def test_rounds_come_in_order_with_their_records_and_end_in_the_same_bits(tmp_path, unbroken):
    with experiment(tmp_path / "run").rounds() as rounds:
        seen = list(rounds)
        result = rounds.result

    names = [(r.stage, r.round, r.rounds) for r in seen]
    assert names == [("group", 1, 1), ("correct", 1, 1), *(("train", i, 3) for i in (1, 2, 3))]
    assert [dict(r.record) for r in seen] == result.records
    assert seen[0].record["ari"] == unbroken.summary["ari"]
    assert seen[-1].accuracy == result.accuracy == unbroken.accuracy
    assert result.summary["digest"] == unbroken.summary["digest"]


@pytest.mark.parametrize("left", [1, 3, 4])
def test_leaving_early_commits_and_resuming_ends_in_the_same_bits(tmp_path, unbroken, left):
    with experiment(tmp_path / "run").rounds() as rounds:
        for done, _ in enumerate(rounds, start=1):
            if done == left:
                break

    folder = tmp_path / "run"
    assert read_manifest(str(folder / "checkpoint"))["finished"] == left
    assert not (folder / "result.json").exists()
    last = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["outcome"]) == ("end", "stopped")
    result = experiment(folder).run(resume=True)
    assert result.summary["digest"] == unbroken.summary["digest"]


def test_leaving_in_the_last_round_is_the_end_of_the_run(tmp_path, unbroken):
    with experiment(tmp_path / "run").rounds() as rounds:
        for done in rounds:
            if (done.stage, done.round) == ("train", 3):
                break

    assert load_result(tmp_path / "run").summary["digest"] == unbroken.summary["digest"]


def test_a_caller_that_fails_keeps_what_was_done(tmp_path, unbroken):
    def fails_in_train_2() -> None:
        with experiment(tmp_path / "run").rounds() as rounds:
            for done in rounds:
                _ = 1 / (done.round - 2)

    with pytest.raises(ZeroDivisionError):
        fails_in_train_2()

    assert read_manifest(str(tmp_path / "run/checkpoint"))["finished"] == 4
    with experiment(tmp_path / "run").rounds(resume=True) as rounds:
        assert [(r.stage, r.round) for r in rounds] == [("train", 3)]
    assert rounds.result.summary["digest"] == unbroken.summary["digest"]


def test_the_rest_can_be_run_at_once_after_a_look(tmp_path, unbroken):
    with experiment(tmp_path / "run").rounds() as rounds:
        first = next(rounds)
        assert rounds.result.is_finished is False
        assert repr(rounds) == "Rounds(1 of 5 done)"
        result = rounds.finish()

    assert first.groups == unbroken.groups
    assert result.summary["digest"] == unbroken.summary["digest"]


def test_models_of_a_round_are_the_callers_own(tmp_path, unbroken):
    import torch

    with experiment(tmp_path / "run").rounds() as rounds:
        assert next(rounds).model_names == []
        with pytest.raises(DataError, match="no model 'group/0'; the models are: none yet"):
            next(rounds).arrays("group/0")
        for done in rounds:
            arrays, kept = done.arrays("group/1"), done.arrays("group/1")
            module = done.module("group/1")
            assert done.model_names == ["group/0", "group/1"]
            assert {n: tuple(a.shape) for n, a in module.named_parameters()} == {
                n: a.shape for n, a in arrays.items()
            }
            for name, parameter in module.named_parameters():
                np.testing.assert_array_equal(parameter.detach().numpy(), arrays[name])
                arrays[name][:] = 0  # neither may reach the run
                torch.nn.init.zeros_(parameter)

    assert rounds.result.summary["digest"] == unbroken.summary["digest"]
    assert rounds.result.model_names == done.model_names
    for name, parameter in rounds.result.module("group/1").named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), kept[name])
    with pytest.raises(OutputError, match=r"this run was left.*resume=True"):
        done.module("group/0")
    with pytest.raises(DataError, match="no model 'group/9'; ask for one of: group/0, group/1"):
        rounds.result.module("group/9")


@pytest.mark.ray
def test_rounds_on_actors_can_be_left_and_finished_in_one_process(ray_session, tmp_path, unbroken):
    actors = "runtime={kind: ray, actors: 2}"
    with experiment(tmp_path / "run", "fb_nll", actors).rounds() as rounds:
        for done in rounds:
            if done.stage == "train":
                break
        shapes = {name: array.shape for name, array in done.arrays("group/0").items()}

    assert shapes == {"head.weight": (10, 64), "head.bias": (10,)}
    again = experiment(tmp_path / "run").run(resume=True)
    assert again.summary["digest"] == unbroken.summary["digest"]


def test_a_left_run_gives_no_more_rounds(tmp_path):
    with experiment(tmp_path / "run").rounds() as rounds:
        next(rounds)

    with pytest.raises(OutputError, match="this run was left"):
        next(rounds)


def test_resuming_a_finished_run_has_its_result_and_no_rounds(unbroken):
    with experiment(Path(unbroken.run_dir)).rounds(resume=True) as rounds:
        assert list(rounds) == []
        assert rounds.is_finished

    assert rounds.result.summary == unbroken.summary


# ---- results -----------------------------------------------------------------------------------


def test_a_loaded_result_is_the_one_that_the_run_returned(unbroken):
    loaded = load_result(unbroken.run_dir)

    assert loaded == unbroken
    assert loaded.records == unbroken.records
    assert loaded.accuracy == np.mean(unbroken.summary["accuracy"]["per_client"])
    assert load_config(loaded.config).seed == loaded.seed == 0
    assert (loaded.method, loaded.dataset) == ("fb_nll", "digits")


def test_arrays_come_by_name_and_a_wrong_name_lists_the_right_ones(unbroken, single):
    stored = np.load(Path(unbroken.run_dir) / "artifacts" / "similarity.npy")

    np.testing.assert_array_equal(unbroken.similarity, stored)
    assert unbroken.similarity.shape == (6, 6)
    assert unbroken.artifact("labels_true").sum() == sum(
        unbroken.environment["federation"]["sizes"]
    )
    with pytest.raises(DataError, match=r"no array 'similarity'; ask for one of: .*labels_given"):
        _ = single.similarity


def test_an_unfinished_run_is_a_result_without_summary(tmp_path):
    with experiment(tmp_path / "run").rounds() as rounds:
        next(rounds)
    early = load_result(tmp_path / "run")

    assert not early.is_finished
    assert early.summary == {}
    assert math.isnan(early.accuracy)
    assert len(early.records) == 1
    assert early.clients_frame()["accuracy"].isna().all()
    assert "not finished" in repr(early)


def test_reprs_say_what_a_person_asks_first(unbroken):
    said = f"accuracy {unbroken.accuracy:.4f}, ARI {unbroken.summary['ari']:.3f}, 3 rounds"

    assert repr(unbroken) == f"RunResult(fb_nll on digits, seed 0: {said}; {unbroken.run_dir})"
    assert f"<td>{unbroken.accuracy:.4f}</td>" in unbroken._repr_html_()


@pytest.mark.parametrize(("where", "match"), [("", "holds 2 runs.*load_results"), ("no", "no run")])
def test_loading_what_is_not_one_run_says_so(unbroken, single, where, match):
    with pytest.raises(DataError, match=match):
        load_result(Path(unbroken.run_dir).parent / where)


def test_a_damaged_result_or_array_is_named(tmp_path, unbroken):
    shutil.copytree(unbroken.run_dir, tmp_path, dirs_exist_ok=True)
    (tmp_path / "artifacts/similarity.npy").write_bytes(b"torn")

    with pytest.raises(DataError, match=r"similarity\.npy is damaged.*run it again"):
        _ = load_result(tmp_path).similarity
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(DataError, match=r"result\.json is damaged.*run it again"):
        load_result(tmp_path)
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(DataError, match=r"result\.json is not readable.*run it again"):
        load_result(tmp_path)


# ---- frames ------------------------------------------------------------------------------------


def test_rounds_as_a_frame_have_the_numbers_of_the_records(unbroken):
    table = unbroken.to_pandas()

    assert list(table["step"]) == [1, 2, 3, 4, 5]
    assert list(table["stage"]) == ["group", "correct", "train", "train", "train"]
    assert set(table["method"]) == {"fb_nll"}
    assert table["accuracy"].isna().tolist() == [True, True, False, False, False]
    assert table["accuracy"].iloc[-1] == unbroken.accuracy
    assert table["up_bytes"].sum() == unbroken.summary["bytes"]["up"]
    assert table["up_bytes_model"].sum() == unbroken.summary["messages"]["up"]["model"]
    assert table["labels_noise_after"].dropna().tolist() == [
        unbroken.summary["labels"]["noise_after"]
    ]
    by_task = [table[f"accuracy_task_{i}"].iloc[-1] for i in (0, 1)]
    assert by_task == unbroken.records[-1]["by_task"]["accuracy"]
    assert table["elapsed_s"].iloc[-1] == pytest.approx(sum(r["seconds"] for r in unbroken.records))


def test_clients_as_a_frame_agree_with_the_whole(unbroken):
    table = unbroken.clients_frame()
    given = (table["noise_given"] * table["samples"]).sum() / table["samples"].sum()
    after = (table["noise_corrected"] * table["samples"]).sum() / table["samples"].sum()

    assert table["accuracy"].mean() == pytest.approx(unbroken.accuracy, abs=1e-12)
    assert dict(zip(table["client"], table["group"], strict=True)) == unbroken.groups
    assert given == pytest.approx(unbroken.summary["labels"]["noise_before"], abs=1e-12)
    assert after == pytest.approx(unbroken.summary["labels"]["noise_after"], abs=1e-12)
    assert table.groupby("task")["client"].count().sum() == 6


def test_many_runs_make_one_tidy_frame(unbroken, single):
    runs = load_results(Path(unbroken.run_dir).parent)
    table, summary = runs.to_pandas(), runs.summary_frame()

    assert [r.method for r in runs] == ["fb_nll", "single"]
    last = table[table["step"] == table.groupby("method")["step"].transform("max")]
    assert last.set_index("method")["accuracy"].to_dict() == {
        "fb_nll": unbroken.accuracy,
        "single": single.accuracy,
    }
    assert summary.set_index("seed")["accuracy"].to_dict() == {
        0: unbroken.accuracy,
        1: single.accuracy,
    }
    assert summary["rounds"].tolist() == [3, 3]
    assert summary["noise_after"].iloc[1] == single.summary["labels"]["noise_after"]
    assert len(runs.clients_frame()) == 12
    assert runs._repr_html_().count("<tr>") == 3


def test_frames_without_pandas_say_what_to_install(unbroken, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(EnvironmentNotFit, match=r"pip install 'raysim\[pandas\]'"):
        unbroken.to_pandas()


def test_importing_raysim_and_reading_results_loads_nothing_heavy():
    code = (
        "import sys, raysim; raysim.load_results; "
        "print([m for m in ('ray', 'torch', 'sklearn', 'pandas', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"

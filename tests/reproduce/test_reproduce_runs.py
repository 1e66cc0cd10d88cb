"""``raysim reproduce`` on the digits: what it writes, reuses, skips, refuses and reports."""

from __future__ import annotations

import json
import platform

import pytest

from raysim.config import load_config
from raysim.experiment import Experiment
from raysim.studies.reproduce.configs import differences, public_config, run_config
from raysim.studies.reproduce.measure import same_groups
from raysim.studies.reproduce.papers import TABLES
from raysim.studies.reproduce.results import Row, read_results, rows_of
from raysim.studies.reproduce.summary import row_texts, write_summary

NAME = "rcc-pfl/tiny"


def test_a_result_holds_what_metrics_section_9_asks_for(finished, result_of):
    found = result_of(finished, "single")

    assert found["name"] == NAME
    assert (found["cell"], found["seed"], found["scale"]) == ("digits/m3/single", 0, "full")
    assert found["accuracy_percent"] == pytest.approx(100 * found["accuracy"], abs=1e-4)
    assert found["series"]["round"] == [1, 2, 3]
    assert found["series"]["accuracy"][-1] == pytest.approx(found["accuracy"], abs=1e-5)
    assert [len(row) for row in found["series"]["test_loss_by_task"]] == [3, 3, 3]
    assert found["bytes"]["messages"]["up"].keys() == {"model"}
    assert found["bytes"]["up"] == found["bytes"]["messages"]["up"]["model"] > 0
    assert 0.2 < found["noise"]["before"] == found["noise"]["after"] < 0.25
    assert len(found["groups"]) == 12
    assert found["reduced"] == {}
    assert found["machine"]["cpus"] >= 1
    assert found["digest"]["models"]


def test_no_path_and_no_host_name_is_in_a_result(finished):
    for path in (finished / NAME).rglob("seed*.json"):
        text = path.read_text(encoding="utf-8")
        assert str(finished.parent) not in text
        assert platform.node() not in text


def test_a_result_equals_the_run_of_its_config(finished, result_of, tmp_path):
    found = result_of(finished, "single")

    config = load_config(found["config"], ["runtime.kind=local", f"output={tmp_path / 'run'}"])
    summary = Experiment(config).run().summary

    assert found["accuracy"] == summary["accuracy"]["mean"]
    assert found["digest"] == summary["digest"]
    assert found["bytes"]["messages"] == summary["messages"]


def test_optimum_is_reused_where_the_groups_are_identical(finished, result_of, tmp_path):
    optimum, reused = result_of(finished, "optimum"), result_of(finished, "rcc_pfl")

    assert "reused_from" not in optimum
    assert reused["reused_from"]["cell"] == "digits/m3/optimum"
    assert reused["ari"] == 1.0
    assert reused["config"]["method"]["name"] == "rcc_pfl"

    config = load_config(reused["config"], ["runtime.kind=local", f"output={tmp_path / 'run'}"])
    experiment = Experiment(config)
    summary = experiment.run().summary
    trained = [r for r in experiment.folder.records() if r.accuracy is not None]
    assert reused["accuracy"] == summary["accuracy"]["mean"]
    assert reused["series"]["accuracy"] == [round(r.accuracy["mean"], 5) for r in trained]
    assert reused["series"]["test_loss"] == [round(r.test_loss, 5) for r in trained]
    assert reused["groups"] == summary["groups"]
    assert reused["bytes"]["messages"] == summary["messages"]


@pytest.mark.slow
def test_other_groups_are_trained_in_full(tiny, reproduce, tmp_path, result_of):
    tiny(rows={"rcc_pfl": {"both": ["method.grouping.groups=2"]}})  # of three tasks

    said = reproduce(NAME, "--cells", "*/optimum,*/rcc_pfl", "--seeds", "1", "--json")

    found = result_of(tmp_path / "out", "rcc_pfl")
    assert said.code == 0, said.err
    assert found["ari"] < 1.0
    assert "reused_from" not in found
    assert found["accuracy"] != result_of(tmp_path / "out", "optimum")["accuracy"]


def test_groups_are_compared_up_to_their_names():
    assert same_groups([0, 0, 1, 2], [2, 2, 0, 1])
    assert not same_groups([0, 0, 1, 2], [0, 1, 1, 2])
    assert not same_groups([0, 0, 0], [0, 0, 1])
    assert not same_groups(None, [0])


def test_rows_have_mean_sample_sd_and_difference(finished, result_of):
    table = TABLES[NAME]

    row = rows_of(table, read_results(finished, table, "full"))[0]

    a, b = (result_of(finished, "optimum", seed)["accuracy_percent"] for seed in (0, 1))
    assert row.values == (a, b)
    assert row.mean == pytest.approx((a + b) / 2)
    assert row.sd == pytest.approx(abs(a - b) / 2**0.5)  # sample sd of two numbers
    assert row.difference == pytest.approx(row.mean - 91.5)


def test_small_is_marked_and_says_what_it_reduces(tiny, reproduce, tmp_path, result_of):
    said = reproduce(NAME, "--cells", "*/single", "--scale", "small")

    found = result_of(tmp_path / "out", "single", scale="small")
    assert said.code == 0, said.err
    assert found["reduced"] == {"train.rounds": {"paper": 3, "here": 2}}
    assert found["rounds"] == 2
    assert "not the paper's setting: train.rounds: 2 (paper 3), digits" in said.out


def test_finished_runs_are_skipped_and_a_changed_config_is_refused(tiny, reproduce, tmp_path):
    first = reproduce(NAME, "--cells", "*/single", "--seeds", "1")
    path = tmp_path / "out" / NAME / "full" / "digits" / "m3" / "single" / "seed0.json"
    before = path.stat().st_mtime_ns

    again = reproduce(NAME, "--cells", "*/single", "--seeds", "1", "--resume", "--json")

    assert first.code == again.code == 0
    assert "start" not in again.err
    assert path.stat().st_mtime_ns == before
    assert again.json["cells"][0]["n"] == 1
    tiny(text="base: quickstart\nname: tiny\ntrain: {rounds: 4, epochs: 1}\n")
    refused = reproduce(NAME, "--cells", "*/single", "--seeds", "1")
    assert refused.code == 2
    assert "train.rounds (now 4, was 3)" in refused.err
    assert "use another --out, or --force" in refused.err
    forced = reproduce(NAME, "--cells", "*/single", "--seeds", "1", "--force")
    assert forced.code == 0, forced.err
    assert json.loads(path.read_text())["rounds"] == 4


def test_a_setting_that_was_added_since_counts_as_its_default(tiny):
    table = TABLES[NAME]
    config = run_config(table, table.cells[0], seed=0, scale="full")
    stored = public_config(config)
    del stored["data"]["fraction"]

    assert differences(config, stored) == []
    stored["data"]["fraction"] = 0.5
    assert differences(config, stored) == ["data.fraction (now 1.0, was 0.5)"]


def test_a_failing_cell_is_reported_and_the_others_go_on(tiny, reproduce, tmp_path, result_of):
    raw = {"title": "", "datasets": "digits", "columns": "m3"}
    text = "base: quickstart\nname: tiny\ntrain: {rounds: 1}\ndata: {server: {per_class: 0}}\n"
    tiny({**raw, "rows": "single fb_nll no_such_method"}, text)

    said = reproduce(NAME, "--seeds", "1", "--json")

    failed = {row["cell"]: row["error"] for row in said.json["failed"]}
    assert said.code == 1
    assert failed.keys() == {"digits/m3/fb_nll", "digits/m3/no_such_method"}
    assert "data.server.per_class is 0" in failed["digits/m3/fb_nll"]
    assert "unknown method 'no_such_method'" in failed["digits/m3/no_such_method"]
    assert "digits/m3/fb_nll seed 0 failed" in said.err
    assert result_of(tmp_path / "out", "single")["rounds"] == 1
    assert [row["n"] for row in said.json["cells"]] == [1, 0, 0]


def test_a_cell_without_result_is_shown_as_not_run():
    row = Row("digits/m3/optimum", "", (), (), None)

    assert row_texts(row, 2) == ["not run", "", "", ""]
    assert row.plain()["mean"] is row.plain()["sd"] is None


def test_what_the_command_wrote_is_summarised(finished):
    text = write_summary(finished)

    (line,) = [x for x in text.splitlines() if x.startswith("| digits/m3/optimum |")]
    assert "## rcc-pfl/tiny, scale full: accuracy on the digits" in text
    assert "| 0-1 | 91.5 ± 0.5 |" in line

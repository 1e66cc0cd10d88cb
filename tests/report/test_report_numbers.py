"""Tables and curves hold the numbers of the files, worked out here again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest

from raysim.report.build import make_report
from raysim.report.report import Cell, Report, Table
from raysim.report.statistics import mean_over_seeds, paired_difference


def table(report: Report, name: str) -> Table:
    return next(t for t in report.tables if t.name == name)


def cells(report: Report, name: str, method: str) -> dict[str, Cell]:
    found = table(report, name)
    row = next(row for row in found.rows if row[0].text == method)
    return dict(zip(found.columns, row, strict=True))


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def report(real_runs: Path) -> Report:
    return make_report([str(real_runs)])


@pytest.mark.parametrize("method", ["fb_nll", "single"])
def test_summary_is_the_mean_over_seeds_of_the_raw_files(report, real_runs, method):
    folders = [real_runs / f"{method}-{seed}" for seed in (0, 1)]
    curves = [[r["accuracy"]["mean"] for r in records(f) if "accuracy" in r] for f in folders]
    last = [100 * curve[-1] for curve in curves]
    sent = [
        sum(sum(r["bytes"]["up"].values()) for r in records(f) if "bytes" in r) for f in folders
    ]

    found = cells(report, "summary", method)

    assert found["accuracy %"].text == f"{mean(last):.2f} ± {stdev(last):.2f}"
    assert found["accuracy %"].value == pytest.approx(mean(last))
    assert found["last 5 %"].value == pytest.approx(100 * mean(mean(c[-5:]) for c in curves))
    assert found["best %"].value == pytest.approx(100 * mean(max(c) for c in curves))
    assert found["ARI"].value == pytest.approx(mean(result(f)["ari"] for f in folders))
    for when in ("before", "after"):
        noise = mean(result(f)["labels"][f"noise_{when}"] for f in folders)
        assert found[f"noise {when} %"].value == pytest.approx(100 * noise)
    assert found["up MB"].value == pytest.approx(mean(sent) / 1e6)
    assert found["seconds"].value == pytest.approx(
        mean(result(f)["seconds"]["total"] for f in folders)
    )
    assert found["seeds"].value == 2


def test_only_the_better_method_is_bold(report):
    values = {m: cells(report, "summary", m)["accuracy %"] for m in ("fb_nll", "single")}
    better = max(values, key=lambda m: values[m].value)

    assert {m: cell.best for m, cell in values.items()} == {m: m == better for m in values}


def test_differences_are_those_of_the_same_seeds(report, real_runs):
    gaps = [
        100 * (result(real_runs / f"fb_nll-{s}")["accuracy"]["mean"])
        - 100 * (result(real_runs / f"single-{s}")["accuracy"]["mean"])
        for s in (0, 1)
    ]
    reach = 12.7062047 * stdev(gaps) / math.sqrt(2)  # Student's t, 97.5 %, one degree of freedom

    found = cells(report, "differences", "fb_nll")

    assert found["minus"].text == "single"
    assert found["difference"].value == pytest.approx(mean(gaps))
    assert found["interval"].text == f"[{mean(gaps) - reach:+.2f}, {mean(gaps) + reach:+.2f}]"


def test_tasks_are_those_of_the_last_round(report, real_runs):
    raw = [records(real_runs / f"fb_nll-{s}")[-1]["by_task"]["accuracy"] for s in (0, 1)]

    found = cells(report, "tasks", "fb_nll")

    for task, values in enumerate(zip(*raw, strict=True)):
        assert found[f"task {task + 1}"].value == pytest.approx(100 * mean(values))


def test_curve_is_the_mean_over_seeds_against_round_bytes_and_seconds(report, real_runs):
    raw = [records(real_runs / f"fb_nll-{seed}") for seed in (0, 1)]
    figure = next(f for f in report.figures if f.name == "accuracy")
    line = next(line for line in figure.drawing.lines if line.method == "fb_nll")
    total = [
        sum(sum(r.get("bytes", {}).get(way, {}).values()) for r in run for way in ("up", "down"))
        for run in raw
    ]
    last = [run[-1]["accuracy"]["mean"] for run in raw]

    assert line.x["round"] == [1, 2, 3]
    assert line.x["bytes"][-1] == pytest.approx(mean(total) / 1e6)
    assert line.x["seconds"][-1] == pytest.approx(
        mean(sum(r["seconds"] for r in run) for run in raw)
    )
    assert line.y[-1] == pytest.approx(mean(last))
    assert line.high[-1] - line.y[-1] == pytest.approx(stdev(last))


def test_similarity_is_the_saved_matrix_in_another_order(report, real_runs):
    saved = np.load(real_runs / "fb_nll-0" / "artifacts" / "similarity.npy")
    figure = next(f for f in report.figures if f.name == "similarity")

    order = [int(name) for name in figure.drawing.row_names]

    assert sorted(order) == list(range(6))
    np.testing.assert_allclose(figure.drawing.values, saved[np.ix_(order, order)])
    assert list(figure.drawing.bars) == [
        records(real_runs / "fb_nll-0")[0]["groups"][k] for k in order
    ]


def test_every_run_shows_its_config_and_environment(report, real_runs):
    labels = [f"{method}, seed {seed}" for method in ("fb_nll", "single") for seed in (0, 1)]

    assert list(report.configs) == list(report.environments) == labels
    assert report.configs["single, seed 1"] == (real_runs / "single-1" / "config.yaml").read_text()


# ---- by hand -------------------------------------------------------------------------------


def test_paired_difference_by_hand():
    """Gaps 1, 2, 3: mean 2, sd 1, and 2 ± 4.302653 / sqrt(3) = 2 ± 2.484138."""
    found = paired_difference({0: 11.0, 1: 12.0, 2: 13.0, 9: 0.0}, {0: 10.0, 1: 10.0, 2: 10.0})

    assert (found.mean, found.n) == (2.0, 3)
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-5)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-5)


def test_one_common_seed_has_no_interval_and_none_no_difference():
    one = paired_difference({0: 3.0, 1: 5.0}, {1: 4.0})

    assert (one.mean, one.low, one.high, one.n) == (1.0, None, None, 1)
    assert paired_difference({0: 1.0}, {1: 1.0}) is None


def test_sd_needs_two_seeds():
    assert mean_over_seeds([0.5, None]).sd is None
    assert mean_over_seeds([1.0, 3.0]).sd == pytest.approx(math.sqrt(2))
    assert mean_over_seeds([None]) is None


def test_silhouette_and_cut_by_hand(write_run):
    """Two pairs, R = 0.9 inside, 0.3 across: silhouette (0.7 - 0.1) / 0.7, merges at 0.1, 0.7."""
    matrix = np.full((4, 4), 0.3)
    matrix[:2, :2] = matrix[2:, 2:] = 0.9
    np.fill_diagonal(matrix, 1.0)
    run = write_run("fb_nll", 0, [0.5], groups=[0, 0, 1, 1], arrays={"similarity": matrix})

    figures = {f.name: f for f in make_report([str(run)]).figures}

    assert figures["similarity"].notes["silhouette"] == pytest.approx(0.6 / 0.7, abs=1e-4)
    assert figures["dendrogram"].drawing.cut == pytest.approx(0.4)
    assert max(max(y) for y in figures["dendrogram"].drawing.dcoord) == pytest.approx(0.7)


def test_last_accuracy_and_costs_by_hand(write_run):
    curve = [0.1, 0.2, 0.9, 0.4, 0.5, 0.6]
    run = write_run("single", 3, curve)

    found = cells(make_report([str(run)]), "summary", "single")

    assert found["last 5 %"].text == "52.00"
    assert found["best %"].text == "90.00"
    assert (found["up MB"].text, found["down MB"].text) == ("6.00", "18.00")
    assert found["seconds"].text == "4.0"


def test_settings_are_not_compared(write_run):
    write_run("single", 0, [0.9])
    run = write_run("fb_nll", 0, [0.5], data={"noise": {"kind": "class_dependent"}})

    report = make_report([str(run.parent)])

    assert not any(cell.best for row in table(report, "summary").rows for cell in row)
    assert "differences" not in {t.name for t in report.tables}
    assert any("2 settings" in problem for problem in report.problems)
    assert report.methods == ["fb_nll", "single"]
    rows = {row[0].text for row in table(report, "summary").rows}
    assert rows == {"single (noise none)", "fb_nll (noise class_dependent)"}


def test_judged_labels_and_noisy_clients_have_tables(write_run):
    scores = {"precision": 0.75, "recall": 0.5, "f_score": 0.6}
    record = {
        "selection": scores,
        "selection_of_wrong": {**scores, "f_score": 0.25, "empty": 0},
        "judged": {**scores, "precision": 1.0},
        "judged_of_wrong": {**scores, "f_score": None, "empty": 0},
        "noisy_clients": {
            **{"found": [0, 2], "precision": 0.5, "recall": 1.0, "f1": 0.66, "auroc": 0.9},
            "correlation": 0.8125,
        },
        "top5": {"mean": 0.97, "std": 0.01},
    }
    report = make_report([str(write_run("single", 0, [0.5], extra=record))])

    method, final = table(report, "judgements").rows
    shown = ["75.00", "50.00", "60.00", "25.00"]
    assert [cell.text for cell in method[1:]] == ["the method", *shown]
    assert [cell.text for cell in final[1:]] == ["the final model", "100.00", "50.00", "60.00", "-"]
    (row,) = table(report, "noisy-clients").rows
    assert [cell.text for cell in row[1:]] == ["2.0", "50.00", "100.00", "66.00", "90.00", "0.812"]
    assert cells(report, "summary", "single")["top-5 %"].value == pytest.approx(97.0)


def test_top5_has_no_column_where_nobody_asked_for_it(report):
    assert "top-5 %" not in table(report, "summary").columns


def test_a_repair_in_front_of_a_stage_is_in_the_name(write_run):
    run = write_run("single", 0, [0.5])
    file = run / "config.yaml"
    file.write_text(file.read_text() + "correct: {before: train}\n")

    assert list(make_report([str(run)]).methods) == ["single+fb_nll"]


def test_both_kinds_of_f_scores_have_a_figure(write_run):
    arrays = {"client_f_score": np.array([0.5, np.nan]), "client_f_score_judged": np.full(2, 0.25)}
    report = make_report([str(write_run("single", 0, [0.5], arrays=arrays))])

    drawn = {figure.name: figure.drawing for figure in report.figures}
    assert drawn["f-score"].values == {"single": [0.5]}
    assert drawn["f-score-judged"].values == {"single": [0.25, 0.25]}

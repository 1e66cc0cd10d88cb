"""Directories that are not what they should be: said, never a traceback."""

from __future__ import annotations

import json

import numpy as np
import pytest

from raysim.errors import DataError
from raysim.report.build import make_report


def problem_with(report, words: str) -> str:
    found = [problem for problem in report.problems if words in problem]
    assert found, f"{words!r} not in {report.problems}"
    return found[0]


def test_partial_run_is_shown_as_such_and_never_best(write_run):
    write_run("single", 0, [0.5, 0.5, 0.5, 0.5])
    partial = write_run("fb_nll", 0, [0.9, 0.95], rounds=4)

    report = make_report([str(partial.parent)])

    assert problem_with(report, str(partial)).endswith("not finished, 2 of 4 rounds are recorded.")
    rows = {row[0].text: row for row in report.tables[0].rows}
    assert rows["fb_nll"][1].text == "1 (2/4 rounds)"
    assert rows["fb_nll"][2].text == "95.00"
    assert not any(cell.best for cell in rows["fb_nll"])
    assert "differences" not in {table.name for table in report.tables}


def test_partial_seed_stays_out_of_the_mean(write_run):
    write_run("single", 0, [0.5, 0.6])
    partial = write_run("single", 1, [0.1], rounds=2)

    report = make_report([str(partial.parent)])

    assert report.tables[0].rows[0][2].text == "60.00"
    assert problem_with(report, "left out, since other seeds")


def test_failed_run_says_why(write_run):
    run = write_run("single", 0, [0.5], rounds=3)
    events = [
        {"event": "start"},
        {"event": "end", "outcome": "failed", "message": "run ended: client 3 failed"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))

    assert problem_with(make_report([str(run)]), "It failed: client 3 failed.")


def test_torn_last_line_is_normal_and_a_broken_one_is_said(write_run):
    run = write_run("single", 0, [0.5, 0.6])
    text = (run / "rounds.jsonl").read_text()

    (run / "rounds.jsonl").write_text(text + '{"stage": "tra')
    assert make_report([str(run)]).problems == []

    lines = text.splitlines()
    (run / "rounds.jsonl").write_text("\n".join([lines[0], "{broken", "3", lines[2], ""]))
    report = make_report([str(run)])
    assert "line 2, 3" in problem_with(report, "rounds.jsonl is damaged")
    assert report.tables[0].rows[0][2].text == "60.00"


def test_a_run_without_rounds_shows_its_result(write_run):
    run = write_run("single", 0, [0.5, 0.6])
    (run / "rounds.jsonl").write_text("")

    report = make_report([str(run)])

    assert report.tables[0].rows[0][2].text == "60.00"
    lacking = {f.name for f in report.figures if f.drawing is None}
    assert {"accuracy", "communication", "timing", "selection"} <= lacking


def test_damaged_result_and_environment_leave_the_records(write_run):
    run = write_run("single", 0, [0.5, 0.6])
    (run / "result.json").write_text('{"accuracy"')
    (run / "environment.json").unlink()

    report = make_report([str(run)])

    assert problem_with(report, "result.json is damaged")
    assert problem_with(report, "environment.json is missing")
    assert report.tables[0].rows[0][2].text == "60.00"


@pytest.mark.parametrize(
    "array", [b"no array", np.zeros(3), np.full((2, 2), np.nan), np.zeros((2, 3))]
)
def test_damaged_similarity_is_a_problem(write_run, array):
    run = write_run("fb_nll", 0, [0.5], groups=[0, 1])
    file = run / "artifacts" / "similarity.npy"
    file.write_bytes(array) if isinstance(array, bytes) else np.save(file, array)

    report = make_report([str(run)])

    assert problem_with(report, "similarity")
    assert next(f for f in report.figures if f.name == "similarity").drawing is None


def test_records_of_wrong_types_are_passed_over(write_run):
    run = write_run("single", 0, [0.5, 0.6])
    strange = {
        "accuracy": 3,
        "by_task": [1],
        "bytes": "x",
        "loss": None,
        "seconds": "a",
        "labels": 1,
    }
    with (run / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(strange) + "\n")

    assert make_report([str(run)]).tables[0].rows[0][2].text == "60.00"


def test_foreign_and_empty_places_are_named(write_run, tmp_path):
    run = write_run("single", 0, [0.5])
    (tmp_path / "empty").mkdir()
    foreign, lost = tmp_path / "foreign", tmp_path / "lost"
    for folder in (foreign, lost):
        folder.mkdir()
    (foreign / "config.yaml").write_text("database: {host: x}\n")
    (lost / "rounds.jsonl").write_text("{}\n")
    places = [str(p) for p in (run, tmp_path / "empty", foreign, lost, tmp_path / "nowhere")]

    report = make_report(places)

    assert "no config.yaml" in problem_with(report, places[1])
    assert "not that of a raysim run" in problem_with(report, places[2])
    assert "config.yaml is missing" in problem_with(report, places[3])
    assert "no config.yaml" in problem_with(report, places[4])
    assert len(report.problems) == 4


def test_nothing_readable_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"no run could be read.*Name run directories"):
        make_report([str(tmp_path)])


def test_same_config_and_seed_count_once(write_run):
    write_run("single", 0, [0.5])
    again = write_run("single", 0, [0.5])

    report = make_report([str(again.parent)])

    assert report.tables[0].rows[0][1].value == 1
    assert problem_with(report, "the same config and seed")


def test_every_listed_figure_is_there_or_says_what_is_missing(write_run):
    report = make_report([str(write_run("single", 0, [0.5]))])

    names = {figure.name for figure in report.figures}
    listed = (
        *("accuracy", "test-loss", "task-accuracy", "task-loss", "relevance", "selection"),
        *("f-score", "communication", "timing", "similarity", "dendrogram", "labels"),
        *("confusion", "client-noise"),
    )
    assert set(listed) <= names
    assert all((f.drawing is None) == bool(f.missing) for f in report.figures)


def test_trackers_do_not_split_the_seeds_of_a_method():
    from raysim.config import FREE_TO_CHANGE
    from raysim.report.series import NO_MATTER

    assert set(FREE_TO_CHANGE) <= set(NO_MATTER)

"""Reports of a sweep: the first figure answers the question, with the numbers of the runs."""

from __future__ import annotations

from statistics import mean, stdev

import pytest

from raysim.errors import ConfigError
from raysim.report.build import make_report
from raysim.report.figure import Figure, Lines
from raysim.report.plots import draw
from raysim.report.swept import is_log_spaced
from raysim.report.writer import write_report

RATE = "data.noise.rate"


@pytest.fixture
def write_sweep(write_run):
    """Return a function that writes a run for each value of noise and seed; returns the folder."""

    def write(values, accuracies=((0.5, 0.6),), method="single", extra=None, **noise):
        for value, ends in zip(values, accuracies * len(values), strict=False):
            for seed, end in enumerate(ends):
                data = {"noise": {"kind": "symmetric", "rate": value, **noise}}
                run = write_run(method, seed, [0.1, end], data=data, extra=extra)
        return str(run.parent)

    return write


def swept(report, measure="accuracy") -> list[Figure]:
    return [f for f in report.figures if f.name.startswith(f"swept-{measure}")]


def lines(figure: Figure) -> Lines:
    assert isinstance(figure.drawing, Lines)
    return figure.drawing


def test_first_figure_is_accuracy_against_the_swept_setting(write_sweep):
    ends = [(0.9, 0.8), (0.7, 0.7), (0.6, 0.4)]
    write_sweep([0.1, 0.2, 0.3], ends, method="fb_nll")
    folder = write_sweep([0.1, 0.3], [(0.5,), (0.3,)])

    report = make_report([folder], swept=[RATE])

    first = report.figures[0]
    assert first.title == f"Accuracy against {RATE}"
    ours, theirs = lines(first).lines
    assert (ours.method, theirs.method) == ("fb_nll", "single")
    assert ours.x["value"] == [0.1, 0.2, 0.3]
    assert ours.y == pytest.approx([mean(pair) for pair in ends])
    reach = [high - y for high, y in zip(ours.high, ours.y, strict=True)]
    assert reach == pytest.approx([stdev(pair) for pair in ends])
    assert (theirs.x["value"], theirs.y, theirs.low) == ([0.1, 0.3], [0.5, 0.3], None)
    assert [f.tab for f in report.figures[:4]] == ["Accuracy", "Noise left", "ARI", "MB sent"]
    assert not any("settings" in problem for problem in report.problems)


def test_noise_ari_and_bytes_are_those_of_the_last_round(write_sweep):
    extra = {"labels": {"noise_before": 0.5, "noise_after": 0.125}, "ari": 0.75}
    report = make_report([write_sweep([0.1, 0.2], extra=extra)], swept=[RATE])

    found = {name: lines(swept(report, name)[0]) for name in ("noise", "ari", "bytes")}

    assert {name: d.lines[0].y for name, d in found.items()} == {
        **{"noise": [0.125] * 2, "ari": [0.75] * 2, "bytes": [8.0] * 2},
    }
    assert [d.percent for d in found.values()] == [True, False, False]


def test_unfinished_runs_have_no_point(write_run, write_sweep):
    write_sweep([0.1, 0.2])
    run = write_run("single", 0, [0.9], rounds=2, data={"noise": {"kind": "symmetric", "rate": 3}})

    (line,) = lines(swept(make_report([str(run.parent)], swept=[RATE]))[0]).lines

    assert line.x["value"] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        ([0.001, 0.01, 0.1], True),
        ([1, 2, 4, 8], True),
        ([10, 20, 50, 100], True),
        ([0.1, 0.2, 0.3, 0.4, 0.5], False),
        ([0.1, 0.2, 0.3, 0.5], False),
        ([0.0, 0.1, 1.0, 10.0], False),
        ([1, 1000], False),
    ],
)
def test_axis_is_logarithmic_where_values_grow_by_factors(values, is_log):
    assert is_log_spaced([float(value) for value in values]) is is_log


def test_words_are_categories_and_numbers_come_before_them(write_sweep):
    report = make_report([write_sweep([10, 2, None], color="x")], swept=[RATE])

    drawing = lines(swept(report)[0])

    assert list(drawing.categories) == ["2", "10", "none"]
    assert drawing.lines[0].x["value"] == ["2", "10", "none"]
    assert not drawing.log


def test_a_choice_is_called_by_its_kind(write_sweep):
    write_sweep([0.1], pair=1)
    folder = write_sweep([0.1], kind="pair")

    report = make_report([folder], swept=["data.noise"])

    assert list(lines(swept(report)[0]).categories) == ["pair", "symmetric"]


def test_second_setting_makes_a_figure_per_value_with_one_range(write_sweep):
    write_sweep([0.1, 0.2], [(0.9,), (0.8,)], spread=1)
    folder = write_sweep([0.1, 0.2], [(0.4,), (0.3,)], spread=2)

    report = make_report([folder], swept=[RATE, "data.noise.spread"])

    one, two = swept(report)
    assert [f.title.partition(": ")[2] for f in (one, two)] == ["spread 1", "spread 2"]
    assert (lines(one).lines[0].y, lines(two).lines[0].y) == ([0.9, 0.8], [0.4, 0.3])
    assert lines(one).y_range == lines(two).y_range
    low, high = lines(one).y_range
    assert low < 0.3 < 0.9 < high


def test_a_swept_method_setting_keeps_one_line_and_one_colour(write_run):
    for linkage, end in (("average", 0.5), ("single", 0.7)):
        run = write_run("fb_nll", 0, [end])
        text = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(text.replace("average", linkage))
    run = write_run("plain", 0, [0.2])
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("grouping", "other"))

    report = make_report([str(run.parent)], swept=["method.grouping.linkage"])

    ours, theirs = lines(swept(report)[0]).lines
    assert report.methods == ["fb_nll", "plain"]
    assert ours.y == [0.5, 0.7]
    assert theirs.name == "plain (does not have it)"
    assert theirs.y == [0.2, 0.2]


def test_a_setting_that_no_run_has_is_refused_before_anything_is_written(write_sweep, tmp_path):
    with pytest.raises(ConfigError, match=r"'data\.noise\.rat', which none of their"):
        write_report([write_sweep([0.1])], tmp_path / "o.html", swept=["data.noise.rat"])

    assert not (tmp_path / "o.html").exists()


@pytest.mark.parametrize("values", [[0.001, 0.01, 0.1], [1, 2, 3], ["a", "b"]])
def test_swept_figures_become_pictures(write_sweep, values):
    report = make_report([write_sweep(values)], swept=[RATE])

    assert draw(report.figures[0], report.methods).startswith(b"\x89PNG")


def test_methods_have_one_colour_in_all_settings(write_sweep):
    write_sweep([0.1, 0.2], method="fb_nll")
    report = make_report([write_sweep([0.1, 0.2])])

    accuracy = [f for f in report.figures if f.name.startswith("accuracy")]

    assert report.methods == ["fb_nll", "single"]
    assert [[line.method for line in lines(f).lines] for f in accuracy] == [report.methods] * 2


def test_first_line_says_what_was_run(real_runs):
    said = make_report([str(real_runs)]).ran.split(" · ")

    assert said[:6] == [
        *("6 clients", "3 tasks", "digits", "class_dependent noise", "noise rate 0.25", "3 rounds"),
    ]
    assert said[6] == "seeds 0-1"
    assert said[7].startswith("20")
    assert said[8].startswith("raysim 0.")


def test_first_line_says_what_differs(write_sweep, write_run):
    write_sweep([0.1, 0.2, 0.3])
    run = write_run("single", 4, [0.5], data={"noise": {"kind": "none"}})

    said = make_report([str(run.parent)]).ran

    assert "noise differs: symmetric noise; no noise" in said
    assert "noise rate differs: 0.1; 0.2; 0.3 (in 6 of 7 runs)" in said
    assert "rounds differ: 2 rounds; 1 round" in said
    assert "seeds differ: 0-1; 4" in said


def test_first_line_says_what_only_some_have_and_no_folder(write_run, tmp_path):
    noises = [{"kind": "file", "path": str(tmp_path / "labels.npz")}, {"kind": "none"}]
    for seed, noise in enumerate(noises):
        run = write_run("single", seed, [0.5], data={"noise": noise})

    said = make_report([str(run.parent)]).ran

    assert "noise differs: file noise; no noise · noise path labels.npz (in 1 of 2 runs)" in said
    assert str(tmp_path) not in said

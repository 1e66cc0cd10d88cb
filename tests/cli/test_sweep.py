"""``raysim sweep``: which values, the same start at every point, and what is refused at once."""

from __future__ import annotations

import json
import shutil

import pytest

import raysim
from raysim.errors import ConfigError, OutputError
from raysim.studies.comparison import Entry, cells_of
from raysim.studies.sweep import parse_sweep

SHORT = ("train.rounds=1", "train.epochs=1", "name=short")
LINE = ("quickstart", "data.noise.rate=0.1,0.5", "--methods", "single,optimum", *SHORT)


# ---- values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("data.noise.rate=0.1,0.25", ["0.1", "0.25"]),
        ("data.noise.rate=0.1..0.5:5", ["0.1", "0.2", "0.3", "0.4", "0.5"]),
        ("train.lr=0.001..0.1:3:log", ["0.001", "0.01", "0.1"]),
        ("train.lr=1e-7..1e-5:3:log", ["1.0e-07", "1.0e-06", "1.0e-05"]),
        ("train.epochs=1..9:3", ["1", "5", "9"]),
        ("train.epochs=1,10..20:2", ["1", "10", "20"]),
        ("x=3..-1:3", ["3", "1", "-1"]),
        ("data.noise={kind: pair, rate: 0.2},none", ["{kind: pair, rate: 0.2}", "none"]),
        ("model.widths=[4, 8],[8, 16]", ["[4, 8]", "[8, 16]"]),
        ("train.augment=none,crop_flip", ["none", "crop_flip"]),
        ("a=null,true", ["null", "true"]),
    ],
)
def test_a_word_with_several_values_is_swept(word, values):
    plain, points = parse_sweep(["train.rounds=2", "output=x/{method}/{seed}", word])

    assert plain == ["train.rounds=2", "output=x/{method}/{seed}"]
    assert [point[word.partition("=")[0]] for point in points] == values


def test_a_setting_without_a_value_stays_a_plain_one():
    plain, points = parse_sweep(["runtime.address=", "train.lr=0.1,0.2"])

    assert (plain, len(points)) == (["runtime.address="], 2)


def test_points_are_all_combinations_with_folders_of_their_own():
    _, points = parse_sweep(["data.noise={kind: symmetric},none", "train.lr=0.1,0.2"])

    cells = cells_of("quickstart", [], [Entry("single", "single")], seeds=None, points=points)

    assert [cell.config.train.lr for cell in cells] == [0.1, 0.2, 0.1, 0.2]
    places = [str(cell.folder.path) for cell in cells]
    assert places[3] == "runs/quickstart/data.noise=none/train.lr=0.2/single/seed0"
    assert len(set(places)) == 4


def test_long_and_similar_values_have_folders_of_their_own():
    long = "\U00010400" * 130  # four bytes each
    _, points = parse_sweep([f"data.root=a/b,a-b,{long}/1,{long}/2"])

    cells = cells_of("quickstart", [], [Entry("single", "single")], seeds=None, points=points)

    assert len({str(cell.folder.path) for cell in cells}) == 4
    names = [name for cell in cells for name in (*cell.folder.path.parts, cell.log)]
    assert max(len(name.encode()) for name in names) < 120


# ---- runs ------------------------------------------------------------------------------------


def test_a_table_and_a_report_that_go_on_with_what_is_missing(command, tmp_path):
    code, out, err = command("sweep", tmp_path, *LINE, "--json")
    assert code == 0, err
    found = json.loads(out.splitlines()[-1])
    rows = [(row["data.noise.rate"], row["method"]) for row in found["methods"]]
    assert rows == [("0.1", "single"), ("0.1", "optimum"), ("0.5", "single"), ("0.5", "optimum")]
    for first, second in (found["methods"][:2], found["methods"][2:]):
        gap = second["accuracy"]["mean"] - first["accuracy"]["mean"]
        assert second["difference"]["mean"] == pytest.approx(gap)  # within its own point
        assert first["difference"] is None
    noise = [row["noise_after"] for row in found["methods"]]
    assert noise[0] == noise[1] < noise[2] == noise[3]
    assert (tmp_path / found["report"][0]).name == "report.html"

    place = tmp_path / "runs/short/data.noise.rate=0.5"
    digest = json.loads((place / "single/seed0/result.json").read_text())["digest"]
    shutil.rmtree(place / "single")
    code, out, err = command("sweep", tmp_path, *LINE, "--resume")
    assert code == 0, err
    assert "1 of 4 runs to do" in out
    assert "start  single data.noise.rate=0.5 seed 0" in out
    assert json.loads((place / "single/seed0/result.json").read_text())["digest"] == digest
    header = next(line for line in out.splitlines() if line.startswith("method "))
    assert header.split()[:3] == ["method", "data.noise.rate", "seeds"]


def test_from_python(tmp_path):
    where = f"output={tmp_path}/{{method}}/{{seed}}"

    found = raysim.sweep("quickstart", ["single"], *SHORT, "train.lr=0.01,0.1", where, jobs=2)

    assert [run.config["train"]["lr"] for run in found] == [0.01, 0.1]
    assert found[0].accuracy != found[1].accuracy


# ---- refused before anything starts ----------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train.lr="], ["needs a key with several values"]),
        (["train.lr=0.1"], ["needs a key with several values", "raysim compare"]),
        (["train.lr=0.1..0.5"], ["a range is lo..hi:n", "got '0.1..0.5'"]),
        (["train.lr=0.1..0.5:1"], ["n from 2 to 1000"]),
        (["train.lr=0.1..0.5:99999"], ["n from 2 to 1000"]),
        (["train.lr=0.1..0.5:3:ln"], ["lo..hi:n:log"]),
        (["train.lr=0..0.5:3:log"], ["above 0 with log"]),
        (["train.lr=0.1..inf:3"], ["must be finite"]),
        (["train.lr=0.1,0.1"], ["train.lr has a value twice"]),
        (["train.lr=0.1,0.2", "train.lr=0.3,0.4"], ["is given twice"]),
        (["train.lr=0.1", "train.lr=0.3,0.4"], ["train.lr", "is given twice"]),
        (["train.lr=0.3,0.4", "train.lr=0.1"], ["train.lr", "is given twice"]),
        (["train.lr=0.001,1e-3"], ["train.lr=0.001", "train.lr=1e-3", "same runs"]),
        (
            ["train.lr=0.1..0.2:1000", "train.epochs=1..999:1000", "train.batch=1..999:1000"],
            ["1,000,000,000 runs", "at most 10,000"],
        ),
        (["train.lr=0.1..0.2:1000", "--seeds", "0-10"], ["11,000 runs", "at most 10,000"]),
        (["seed=0,1"], ["seed cannot be swept"]),
        (["method=single,fb_nll"], ["method is what --methods decides"]),
        (["train.round=1,2"], ["did you mean rounds?"]),
        (["train.epochs=1..2:3"], ["train.epochs", "1.5"]),
        (["data.noise.rate=0.5..1.5:3"], ["data.noise.rate must be in", "got 1.0"]),
        (["train.lr=0.1,0.2", "--resume", "--force"], ["contradict each other"]),
        (["train.lr=0.1,0.2", "output=x/{seed}"], ["train.lr=0.1 seed 0", "use {method}"]),
        (
            ["data.server.per_class=4,0", "--with", "single", "correct={before: train}"],
            ["--methods single: data.server.per_class is 0"],
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(command, tmp_path, words, parts):
    code, out, err = command("sweep", tmp_path, "quickstart", *words, "--methods", "single")

    assert (code, out) == (2, "")
    assert err.startswith("raysim: ")
    assert [part for part in parts if part not in err] == [], err
    assert list(tmp_path.iterdir()) == []


def test_python_refuses_what_the_command_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stranger = tmp_path / "runs/short/train.lr=0.1/single/seed0/mine.txt"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("keep")

    with pytest.raises(OutputError, match="not empty"):
        raysim.sweep("quickstart", ["single"], *SHORT, "train.lr=0.1,0.2")
    with pytest.raises(ConfigError, match="given twice"):
        raysim.sweep("quickstart", ["single"], "train.lr=1,2", "train.lr=1,2")

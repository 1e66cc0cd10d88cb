"""What is NaN or infinite is null in every JSON that a run leaves or prints, and named."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

import raysim
from raysim.cli.run import command as run
from raysim.cli.show import command as show
from raysim.methods import METHODS
from raysim.methods.baselines import Single
from raysim.settings import settings

SHORT = ("quickstart", "train.rounds=2", "train.epochs=1", "runtime.kind=local")


@settings
class SaysNan(Single):
    """Records what no JSON can hold."""

    def round(self, context, state):
        state = Single.round(self, context, state)
        context.record(loss=math.nan, mine={"largest": math.inf, "all": [1.0, -math.inf]})
        context.record(selection={"f_score": math.nan})
        return state


@pytest.fixture(scope="module", autouse=True)
def _says_nan(registered):
    registered(METHODS, "says_nan", SaysNan)


def read(text: str):
    def refuse(name):
        raise AssertionError(f"{name} in {text[:200]}")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    path = tmp_path_factory.mktemp("nan") / "run"
    arguments = [*SHORT, "method=says_nan", f"output={path}", "--json", "--quiet"]
    done = CliRunner().invoke(run, arguments, catch_exceptions=False)
    return path, read(done.stdout.splitlines()[-1])


def test_every_json_of_the_run_directory_can_be_read_by_everybody(said):
    path, _ = said

    files = [p for p in path.rglob("*") if p.suffix in (".json", ".jsonl")]

    assert {"rounds.jsonl", "result.json", "events.jsonl"} <= {p.name for p in files}
    for file in files:
        for text in (
            file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        ):
            read(text)


def test_records_and_result_name_what_was_not_finite(said):
    path, printed = said

    record = read((path / "rounds.jsonl").read_text().splitlines()[-1])
    result = read((path / "result.json").read_text())

    assert record["loss"] is None
    assert record["mine"] == {"largest": None, "all": [1.0, None]}
    assert record["not_finite"] == ["loss", "mine.largest", "mine.all[1]", "selection.f_score"]
    assert result["selection"] == {"f_score": None}
    assert printed == result == dict(raysim.load_result(path).summary)


def test_a_result_of_before_is_shown_without_nan(said, tmp_path):
    path, _ = said
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.yaml", "environment.json", "rounds.jsonl"):
        (old / name).write_bytes((path / name).read_bytes())
    plain = {**read((path / "result.json").read_text()), "selection": {"f_score": math.nan}}
    (old / "result.json").write_text(json.dumps(plain))

    done = CliRunner().invoke(show, [str(old), "--json"], catch_exceptions=False)

    assert read(done.stdout)["not_finite"] == ["selection.f_score"]

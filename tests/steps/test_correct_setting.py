"""FB-NLL's label correction in front of any stage of any method, by configuration."""

from __future__ import annotations

import json

import numpy as np
import pytest

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.methods.clustered import stages_of, uses_of
from raysim.protocols import State

REPAIRS_ITSELF = ["fb_nll", "fedcorr_fb_nll", "clipfl_fb_nll", "rhfl_fb_nll"]
OTHERS = [name for name in METHODS.names() if name not in REPAIRS_ITSELF]


@pytest.mark.parametrize("method", OTHERS)
def test_it_goes_in_front_of_every_stage_of_every_method(method):
    plain = load_config("quickstart", [f"method={method}", "train.rounds=20"])
    names = [stage.name for stage in stages_of(plain)]

    for before in names:
        config = load_config(
            "quickstart", [f"method={method}", "train.rounds=20", f"correct.before={before}"]
        )
        found = [stage.name for stage in stages_of(config)]
        at = names.index(before)
        assert found == [*names[:at], "correct", *names[at:]]
        assert "correction" in uses_of(config)


@pytest.mark.parametrize("method", REPAIRS_ITSELF)
def test_methods_that_repair_labels_refuse_a_second_repair(method):
    config = load_config("quickstart", [f"method={method}", "correct.before=train"])

    with pytest.raises(ConfigError, match="repairs labels itself"):
        stages_of(config)


def test_a_stage_that_is_not_there_is_named_with_those_that_are(run_tiny):
    with pytest.raises(ConfigError, match=r"'warm'.*group, train"):
        run_tiny("single", "correct.before=warm")


def test_the_correction_of_a_run_works_and_is_named(run_tiny):
    with_it = run_tiny("single", "correct.before=train", base=("train.rounds=2",))
    without = run_tiny("single", base=("train.rounds=2",))

    assert with_it.summary["method"] == "single+fb_nll"
    assert with_it.summary["labels"]["noise_after"] < without.summary["labels"]["noise_after"]
    assert with_it.summary["correction"] is not None
    config = load_config(with_it.run_dir / "config.yaml")
    assert config.correct.before == "train"


def test_it_has_a_run_directory_of_its_own():
    config = load_config("quickstart", ["method=single", "correct.before=train"])

    assert config.run_dir().parts[-2:] == ("single+fb_nll", "seed0")


def test_its_settings_are_checked_where_they_are(run_tiny):
    with pytest.raises(ConfigError, match=r"correct\.how\.rank is 5000"):
        run_tiny("single", "correct={before: train, how: {rank: 5000}}")


def test_truth_does_not_matter_for_its_bytes(run_tiny):
    result = run_tiny("single", "correct.before=train", base=("train.rounds=1",))

    lines = (result.run_dir / "rounds.jsonl").read_text().splitlines()
    (repair,) = [r for r in map(json.loads, lines) if r["stage"] == "correct"]
    assert set(repair["bytes"]["up"]) == {"class eigenvectors"}


@pytest.mark.parametrize("method", ["co_teaching", "mr"])
def test_samples_are_scored_by_the_labels_that_were_judged(run_tiny, method):
    summary = run_tiny(method, "correct.before=train", base=("train.rounds=3",)).summary

    # Nearly every label is right after the repair; a quarter was wrong before it.
    assert summary["labels"]["noise_before"] > 0.2
    assert summary["labels"]["noise_after"] < 0.05
    assert summary["selection"]["precision"] > 0.95


def test_the_oracle_knows_the_repaired_labels(bench):
    made = bench(
        [[0, 0, 1], [1, 0]], "model.name=logistic", "method=oracle", "correct.before=train",
        classes=2,
    )  # fmt: skip
    made.federation.map(spoil_task, on=[0])
    context = made.round()
    *_, stage = made.config.method.stages(made.config)

    stage.step(context, State(groups={0: 0, 1: 0}))

    assert context.entry["selection"] == {"precision": 1.0, "recall": 1.0, "f_score": 1.0}
    assert context.entry["selection_of_wrong"]["recall"] == 1.0  # the spoiled one is left out


def spoil_task(client, memory, arguments):
    """As a repair that takes a right label for wrong."""
    return {**memory, "labels": np.array([1, 0, 1])}, None

"""FB-NLL's label correction in front of any stage of any method, by configuration."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from raysim.config import load_config
from raysim.errors import ConfigError, Interrupted
from raysim.methods import METHODS
from raysim.methods.method import stages_of, uses_of

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
    with pytest.raises(ConfigError, match=r"'warm': .* has the stages group, train; name one"):
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


@pytest.mark.parametrize(
    ("method", "stage"), [("co_teaching", "train"), ("mr", "select"), ("oracle", "train")]
)
def test_samples_are_scored_by_the_labels_that_were_judged(run_tiny, method, stage):
    result = run_tiny(method, f"correct.before={stage}", base=("train.rounds=3",))

    # Nearly every label is right after the repair; a quarter was wrong before it.
    assert result.summary["labels"]["noise_before"] > 0.2
    assert result.summary["labels"]["noise_after"] < 0.05
    assert result.summary["selection"]["precision"] > 0.95
    found = [r["stage"] for r in result.records if "selection" in r]
    assert set(found) == {stage}  # the repair is not the method's judgement


def test_a_method_before_the_repair_is_scored_by_the_given_labels(run_tiny):
    plain = run_tiny("mr", base=("train.rounds=2",))
    repaired_later = run_tiny("mr", "correct.before=train", base=("train.rounds=2",))

    assert repaired_later.summary["selection"] == plain.summary["selection"]


def test_noisy_clients_are_those_that_the_repair_left(run_tiny):
    summary = run_tiny("clipfl_fb_nll", base=("train.rounds=6",)).summary
    folder = Path(summary["run_dir"])
    left = np.load(folder / "artifacts" / "client_noise_corrected.npy") > 0
    found = summary["noisy_clients"]["found"]

    assert 0 < left.sum() < len(left)  # all are noisy before it
    assert summary["noisy_clients"]["precision"] == pytest.approx(left[found].mean())
    assert summary["noisy_clients"]["recall"] == pytest.approx(left[found].sum() / left.sum())


def test_fedcorr_is_not_judged_for_a_repair_before_it(run_tiny):
    result = run_tiny("fedcorr", "correct.before=identify", base=("train.rounds=8",))
    kept = [r["selection"] for r in result.records if "selection" in r]

    # It keeps nearly all of the repaired labels, a quarter of which are not the given ones.
    assert min(one["recall"] for one in kept) > 0.9
    assert max(one["precision"] for one in kept) < 1.0


def test_a_resumed_run_knows_the_repaired_labels(run_tiny, tmp_path):
    overrides = ("correct.before=train", f"output={tmp_path / 'run'}")

    def stop(event):
        if event.kind == "round" and event.stage == "train":
            raise KeyboardInterrupt

    whole = run_tiny("co_teaching", "correct.before=train", base=("train.rounds=3",))
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        run_tiny("co_teaching", *overrides, base=("train.rounds=3",), listeners=[stop])
    again = run_tiny("co_teaching", *overrides, base=("train.rounds=3",), resume=True)

    assert again.summary["selection"] == whole.summary["selection"]
    assert again.summary["digest"] == whole.summary["digest"]

"""Settings as written by a person: what is refused, in which words, and what comes out again."""

from __future__ import annotations

import pickle

import pytest
import yaml

from raysim.config import (
    RunConfig,
    changed_keys,
    choice_name,
    config_yaml,
    dump_config,
    load_config,
)
from raysim.data.datasets import DATASETS
from raysim.data.features import FEATURES
from raysim.data.noise import NOISE
from raysim.data.partition import PARTITIONS
from raysim.errors import ConfigError
from raysim.methods import METHODS
from raysim.models.zoo import MODELS

CHOICES = {
    "data.dataset": DATASETS,
    "data.features": FEATURES,
    "data.correction_features": FEATURES,
    "data.partition": PARTITIONS,
    "data.noise": NOISE,
    "model": MODELS,
    "method": METHODS,
}
NEEDED = {("data.partition", "file"): "path: split.npz"}
"""Settings without which a choice cannot be made."""


def every_choice():
    return [(path, name) for path, registry in CHOICES.items() for name in registry.names()]


def chosen(path: str, name: str) -> RunConfig:
    key = CHOICES[path].key
    needed = NEEDED.get((path, name), "")
    return load_config({}, [f"{path}={{{key}: {name}{', ' + needed if needed else ''}}}"])


def refusal(*overrides: str) -> str:
    """What load_config says about the quickstart with these overrides."""
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", overrides)
    return str(caught.value)


# ---- misspelled names ------------------------------------------------------------------------


def test_an_unknown_key_is_named_with_path_value_and_suggestion():
    said = refusal("data.noise.rte=0.1")

    assert "data.noise.rte is not a setting; did you mean rate?" in said
    assert "got 0.1" in said
    assert "noise model class_dependent knows: rate" in said


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [("sed", "seed"), ("train.epoch", "epochs"), ("method.grouping.rnk", "rank")],
)
def test_an_unknown_key_is_refused_at_any_depth(key, suggestion):
    assert f"{key} is not a setting; did you mean {suggestion}?" in refusal(f"{key}=1")


def test_a_key_unlike_any_other_lists_the_known_ones():
    said = refusal("train.qqqq=1")

    assert "train.qqqq is not a setting; remove it" in said
    assert "rounds, epochs, batch_size" in said


def test_a_setting_of_another_choice_names_the_choice_that_lacks_it():
    said = refusal("model.hidden=10")

    assert "model.hidden is not a setting" in said
    assert "model logistic knows: weights" in said


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("method=fb_nl", "method: unknown method 'fb_nl'; did you mean fb_nll?"),
        ("data.dataset=mnst", "data.dataset: unknown dataset 'mnst'; did you mean mnist?"),
        ("model={name: logstic}", "model: unknown model 'logstic'; did you mean logistic?"),
        ("data.noise=unifrm", "data.noise: unknown noise model 'unifrm'; did you mean uniform?"),
        ("data.features=hogg", "unknown feature extractor 'hogg'; did you mean hog?"),
        ("data.partition=task", "unknown partition 'task'; did you mean tasks?"),
    ],
)
def test_an_unknown_choice_is_named_with_a_suggestion(override, sentence):
    assert sentence in refusal(override)


def test_an_unknown_choice_lists_what_there_is():
    said = refusal("method=xyz")

    assert all(name in said for name in METHODS.names())
    assert "did you mean" not in said


def test_a_choice_without_a_name_says_which_key_is_missing():
    said = refusal("method={grouping: {rank: 3}}")

    assert "method.name must be one of" in said
    assert "got None" in said


@pytest.mark.parametrize("value", ["3", "null", "[hog]"])
def test_a_choice_that_is_no_name_is_refused(value):
    assert "data.features must name a feature extractor" in refusal(f"data.features={value}")


def test_a_choice_without_a_setting_it_needs_is_refused():
    said = refusal("data.partition=file")

    assert "data.partition.path" in said


# ---- wrong types and values ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("train.epochs=two", "train.epochs must be a valid integer"),
        ("train.epochs=2.5", "train.epochs must be a valid integer"),
        ("train.epochs=null", "train.epochs must be a valid integer"),
        ("train.lr=fast", "train.lr must be a valid number"),
        ("train.lr=[0.1]", "train.lr must be a valid number"),
        ("name=5", "name must be a valid string"),
        ("train=5", "train must be a section of settings"),
        ("train=[1, 2]", "train must be a section of settings"),
        ("seed.x=1", "seed must be a valid integer"),
        ("model={name: small_cnn, widths: 5}", "model.widths must be a valid tuple"),
    ],
)
def test_a_wrong_type_is_refused_with_path_and_value(override, start):
    said = refusal(override)

    assert said.startswith(start)
    assert "got " in said


@pytest.mark.parametrize("override", ["seed=true", "train.lr=yes", "runtime.actors=true"])
def test_a_truth_value_is_not_a_number(override):
    assert refusal(override).startswith(override.split("=")[0])


def test_a_wrong_word_lists_the_words_and_suggests_one():
    said = refusal("train.augment=flp")

    assert "train.augment must be 'none', 'flip' or 'crop_flip', got 'flp'" in said
    assert "did you mean flip?" in said


@pytest.mark.parametrize(
    ("override", "word"), [("runtime.servers=many", "auto"), ("method.grouping.rank=ful", "full")]
)
def test_a_number_or_word_setting_tells_its_words(override, word):
    assert f"'{word}'" in refusal(override)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("data.noise.rate=2", "data.noise.rate must be in [0, 1), got 2.0"),
        ("seed=-1", "seed must not be negative, got -1"),
        ("train.participation=0", "train.participation must be in (0, 1], got 0.0"),
        ("data.server.per_class=-1", "data.server.per_class must not be negative, got -1"),
        ("checkpoint.every=0", "checkpoint.every must be at least 1, got 0"),
        ("evaluate.every=0", "evaluate.every must be at least 1, got 0"),
        ("method.grouping.threshold=.nan", "method.grouping.threshold must be in [0, 1], got nan"),
        (
            "method={name: mr, largest_loss: .inf}",
            "method.largest_loss must be above 0 and finite, got inf",
        ),
        ("runtime.per_actor.cpus=0", "runtime.per_actor.cpus must be at least 0.001, got 0.0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_path(override, sentence):
    assert sentence in refusal(override)


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "''", "a b"])
def test_a_name_that_is_no_plain_file_name_is_refused(name):
    assert "name must be letters, digits, '.', '_' or '-'" in refusal(f"name={name}")


def test_a_refusal_survives_pickling():
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", ["data.noise.rate=2"])

    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# ---- the run directory -----------------------------------------------------------------------


def test_the_run_directory_fills_in_every_placeholder():
    output = "output='out/{dataset}/{method}/{name}-{seed:03d}'"

    config = load_config("quickstart", [output, "seed=7", "name=trial", "method=single"])

    assert config.run_dir().as_posix() == "out/digits/single/trial-007"


def test_the_run_directory_may_start_at_home(monkeypatch, tmp_path):
    # The shell leaves output=~/runs alone, because the tilde is not at the start of the word.
    monkeypatch.setenv("HOME", str(tmp_path))

    assert load_config("quickstart", ["output=~/runs"]).run_dir() == tmp_path / "runs"


def test_the_home_of_a_stranger_is_refused():
    assert "output" in refusal("output=~nobody-of-this-name/runs")


@pytest.mark.parametrize(
    "output",
    ["{model}", "{}", "{0}", "{name", "{seed:x9}", "{name.size}", "{name[a]}", "{seed:{n}}"],
)
def test_a_run_directory_with_another_placeholder_is_refused(output):
    said = refusal(f"output='{output}'")

    assert "output may only use {name}, {method}, {dataset}, {seed}" in said


# ---- writing it down again -------------------------------------------------------------------


@pytest.mark.parametrize(("path", "name"), every_choice())
def test_every_choice_survives_the_dump(path, name):
    config = chosen(path, name)

    again = load_config(yaml.safe_load(config_yaml(config)))

    assert again == config
    assert f"{name}" in config_yaml(config)


@pytest.mark.parametrize(("path", "name"), every_choice())
def test_every_choice_keeps_its_registered_name(path, name):
    value = chosen(path, name)
    for part in path.split("."):
        value = getattr(value, part)

    assert choice_name(value) == name


def test_the_dump_is_complete():
    plain = dump_config(load_config({}))

    assert plain["train"]["momentum"] == 0.0
    assert plain["data"]["correction_features"] is None
    assert plain["runtime"]["per_actor"] == {"cpus": 1.0, "gpus": 0.0}
    assert plain["method"]["grouping"]["linkage"] == "average"


def test_an_empty_config_is_the_default_config():
    assert load_config({}) == RunConfig()


def test_values_away_from_the_default_survive_the_dump():
    config = load_config(
        "quickstart",
        [
            "train={rounds: 3, lr: 1e-3, optimizer: adam, participation: 0.5, augment: flip}",
            "model={name: small_cnn, widths: [4, 8]}",
            "data.correction_features={kind: pixels}",
            "method={name: fb_nll, grouping: {rank: full}, correction: {threshold: 0.7}}",
            "runtime={kind: ray, actors: 3, per_actor: {cpus: 0.5, gpus: 0.25}}",
        ],
    )

    assert load_config(yaml.safe_load(config_yaml(config))) == config


def test_changed_keys_are_paths_with_both_values():
    ours = load_config("quickstart")
    theirs = load_config("quickstart", ["train.lr=0.2", "data.noise.rate=0.1", "runtime.actors=2"])

    assert changed_keys(ours, ours) == []
    assert changed_keys(ours, theirs, ignore=["runtime"]) == [
        ("data.noise.rate", 0.25, 0.1),
        ("train.lr", 0.05, 0.2),
    ]
    assert ("runtime.actors", "auto", 2) in changed_keys(ours, theirs)


def test_changed_keys_see_a_setting_that_only_one_config_has():
    ours = load_config("quickstart", ["data.noise={kind: class_dependent, rate: 0.4}"])
    theirs = load_config("quickstart", ["data.noise={kind: uniform, rho: 0.4}"])

    changed = {key for key, _, _ in changed_keys(ours, theirs)}

    assert {"data.noise.kind", "data.noise.rate", "data.noise.rho"} <= changed

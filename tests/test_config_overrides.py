"""Overrides on the command line: ``key=value`` over a config."""

from __future__ import annotations

import copy

import pytest

from raysim.config import choice_name, load_config
from raysim.errors import ConfigError


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", overrides)
    return str(caught.value)


def test_an_override_reaches_a_nested_setting():
    config = load_config("quickstart", ["method.grouping.rank=5", "runtime.per_actor.cpus=0.5"])

    assert config.method.grouping.rank == 5
    assert config.runtime.per_actor.cpus == 0.5


def test_an_override_may_be_a_yaml_flow_value():
    noise = "data.noise={kind: uniform, rho: 0.6, exact_count: true}"

    config = load_config("quickstart", [noise, "model={name: small_cnn, widths: [4, 8]}"])

    assert (config.data.noise.rho, config.data.noise.exact_count) == (0.6, True)
    assert config.model.widths == (4, 8)


def test_a_choice_named_in_short_can_be_refined():
    config = load_config("quickstart", ["data.dataset=synthetic", "data.dataset.classes=4"])

    assert (
        config.data.dataset
        == load_config({}, ["data.dataset={name: synthetic, classes: 4}"]).data.dataset
    )


def test_a_choice_in_short_replaces_the_old_choice():
    config = load_config("quickstart", ["data.noise=uniform"])

    assert config.data.noise == load_config({}, ["data.noise={kind: uniform}"]).data.noise


def test_the_key_of_a_choice_replaces_the_old_choice_too():
    # quickstart gives data.noise a rate, which uniform noise does not know.
    overrides = ["data.noise.kind=uniform", "data.noise.rho=0.1"]

    config = load_config("quickstart", overrides)

    assert config.data.noise == load_config({}, ["data.noise={kind: uniform, rho: 0.1}"]).data.noise
    assert load_config("quickstart", overrides[::-1]) == config


def test_the_key_of_the_same_choice_keeps_its_settings():
    config = load_config("quickstart", ["data.noise.kind=class_dependent"])

    assert config == load_config("quickstart")


def test_the_kind_of_runtime_keeps_its_neighbours():
    config = load_config("quickstart", ["runtime.actors=3", "runtime.kind=ray"])

    assert config.runtime.actors == 3


def test_the_last_override_wins():
    assert load_config("quickstart", ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        (["data.noise=none", "data.noise.kind=uniform"], "uniform"),
        (["data.noise.kind=uniform", "data.noise=none"], "none"),
        (["data.noise={kind: class_independent, rate: 0.1}", "data.noise.kind=uniform"], "uniform"),
    ],
)
def test_the_last_override_wins_between_a_section_and_its_key(overrides, kind):
    assert choice_name(load_config("quickstart", overrides).data.noise) == kind


def test_overrides_leave_the_given_mapping_alone():
    given = {"train": {"lr": 0.1}, "model": "mlp"}
    before = copy.deepcopy(given)

    load_config(given, ["train.lr=0.2", "model.hidden=3"])

    assert given == before


@pytest.mark.parametrize("text", ["train.lr", "=1", " =1", ""])
def test_an_override_of_another_form_is_refused(text):
    assert "is not of the form key=value" in refusal(text)


@pytest.mark.parametrize("value", ["[1", "2024-13-45", "{[a]: 1}", "{a: 1, a: 2}"])
def test_an_override_that_is_no_yaml_is_refused(value):
    assert refusal(f"name={value}")


def test_a_value_may_hold_an_equals_sign():
    assert load_config("quickstart", ["data.root='a=b'"]).data.root == "a=b"

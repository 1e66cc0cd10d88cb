"""Config files: YAML, ``base`` and bundled configs by name."""

from __future__ import annotations

import pytest
import yaml

from raysim.config import load_config
from raysim.config.bundled import bundled_configs, config_files
from raysim.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a YAML file and returns its path."""

    def write(name: str, text: str):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def refusal(source, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return str(caught.value)


@pytest.mark.parametrize("number", ["1e-3", "1E-3", "1.0e-3", "0.001", "1e-03"])
def test_a_float_in_any_notation_is_a_float(write, number):
    # PyYAML reads 1e-3, without a dot, as a string.
    config = load_config(write("a.yaml", f"train: {{lr: {number}}}"))

    assert config.train.lr == 0.001
    assert isinstance(config.train.lr, float)


def test_a_float_in_an_override_may_lack_the_dot():
    assert load_config("quickstart", ["train.lr=5e-4"]).train.lr == 0.0005


def test_a_key_given_twice_is_refused_with_its_line(write):
    said = refusal(write("twice.yaml", "seed: 1\ntrain: {rounds: 2}\nseed: 2\n"))

    assert "twice.yaml" in said
    assert "line 3: 'seed' is given twice" in said


def test_a_key_given_twice_inside_a_section_is_refused(write):
    said = refusal(write("twice.yaml", "train:\n  lr: 0.1\n  rounds: 2\n  lr: 0.2\n"))

    assert "line 4: 'lr' is given twice" in said


@pytest.mark.parametrize(
    "text", ["train: [1", "a: b: c", "{a: 1", "a: *nobody", "x: !!python/name:os"]
)
def test_broken_yaml_is_refused_with_the_file_name(write, text):
    said = refusal(write("broken.yaml", text))

    assert "broken.yaml is not readable YAML" in said


@pytest.mark.parametrize("text", ["? [a, b]\n: 1\n", "{{a: 1}: 2}", "name: 2024-13-45\n"])
def test_yaml_that_python_cannot_hold_is_refused_too(write, text):
    # A list as key, a mapping as key, and a month 13.
    assert "odd.yaml" in refusal(write("odd.yaml", text))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"name: \xff\xfe\n")

    assert "binary.yaml is not readable YAML" in refusal(path)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "5\n"])
def test_a_file_without_settings_is_refused(write, text):
    assert "must hold settings (key: value), got" in refusal(write("list.yaml", text))


def test_an_empty_file_is_the_default_config(write):
    assert load_config(write("empty.yaml", "# nothing\n")) == load_config({})


def test_an_empty_section_is_the_default_section(write):
    assert load_config(write("a.yaml", "train:\ndata:\n")) == load_config({})


def test_a_missing_file_says_so_and_suggests_a_bundled_config():
    said = refusal("quikstart")

    assert "config 'quikstart' is neither a file nor a bundled config" in said
    assert "did you mean quickstart?" in said
    assert "raysim ls configs" in said


def test_a_missing_path_is_named(tmp_path):
    assert "nowhere.yaml" in refusal(tmp_path / "nowhere.yaml")


def test_a_bundled_config_is_found_by_name():
    assert load_config("quickstart").name == "quickstart"
    assert load_config("quickstart.yaml") == load_config("quickstart")


def test_a_file_of_that_name_comes_first(write, monkeypatch):
    folder = write("quickstart.yaml", "name: mine\n").parent
    monkeypatch.chdir(folder)

    assert load_config("quickstart.yaml").name == "mine"
    assert load_config("quickstart").name == "quickstart"


@pytest.mark.parametrize("path", config_files(), ids=lambda p: p.stem)
def test_every_bundled_config_loads_by_its_name(path):
    name = path.relative_to(bundled_configs()).with_suffix("").as_posix()

    assert load_config(name) == load_config(path)


BASE = """
seed: 3
data:
  features: {kind: hog, enlarge: 4}
  noise: {kind: class_dependent, rate: 0.3}
train: {rounds: 7, lr: 0.2}
runtime: {kind: auto, actors: 4, per_actor: {cpus: 2}}
"""


def test_a_file_refines_its_base(write):
    write("base.yaml", BASE)

    config = load_config(write("over.yaml", "base: base.yaml\ntrain: {lr: 0.1}\n"))

    assert (config.seed, config.train.rounds, config.train.lr) == (3, 7, 0.1)
    assert config.data.features.enlarge == 4


def test_a_section_of_the_same_kind_keeps_the_bases_settings(write):
    write("base.yaml", BASE)

    same = load_config(
        write("same.yaml", "base: base.yaml\ndata: {features: {kind: hog, cell: 2}}")
    )
    silent = load_config(write("silent.yaml", "base: base.yaml\ndata: {noise: {rate: 0.1}}"))

    assert (same.data.features.enlarge, same.data.features.cell) == (4, 2)
    assert (
        silent.data.noise
        == load_config({}, ["data.noise={kind: class_dependent, rate: 0.1}"]).data.noise
    )


@pytest.mark.parametrize("noise", ["{kind: uniform, rho: 0.6}", "uniform"])
def test_a_section_of_another_kind_replaces_the_bases_section(write, noise):
    write("base.yaml", BASE)

    config = load_config(write("over.yaml", f"base: base.yaml\ndata: {{noise: {noise}}}\n"))

    assert type(config.data.noise).choice_name == "uniform"
    assert config.data.features.enlarge == 4  # the sections beside it stay


def test_a_base_may_name_its_choice_in_short(write):
    write("base.yaml", "model: mlp\n")

    config = load_config(write("over.yaml", "base: base.yaml\nmodel: {hidden: 9}\n"))

    assert config.model == load_config({}, ["model={name: mlp, hidden: 9}"]).model


def test_the_kind_of_runtime_is_no_choice_and_keeps_its_section(write):
    write("base.yaml", BASE)

    config = load_config(write("over.yaml", "base: base.yaml\nruntime: {kind: ray}\n"))

    assert (config.runtime.kind, config.runtime.actors) == ("ray", 4)
    assert config.runtime.per_actor.cpus == 2


def test_bases_may_have_bases_in_other_folders(write):
    write("one.yaml", "seed: 1\nname: one\n")
    write("deep/two.yaml", "base: ../one.yaml\nname: two\n")

    config = load_config(write("three.yaml", "base: deep/two.yaml\ntrain: {rounds: 2}\n"))

    assert (config.seed, config.name, config.train.rounds) == (1, "two", 2)


def test_a_base_may_be_a_bundled_config(write):
    config = load_config(write("mine.yaml", "base: quickstart\nseed: 5\n"))

    assert config == load_config("quickstart", ["seed=5"])


@pytest.mark.parametrize(("one", "two"), [("a.yaml", "a.yaml"), ("b.yaml", "a.yaml")])
def test_a_base_that_refers_back_is_refused(write, one, two):
    write("b.yaml", f"base: {two}\n")

    said = refusal(write("a.yaml", f"base: {one}\n"))

    assert "base refers back to itself" in said


def test_a_base_is_not_looked_for_where_the_command_is_run(write, monkeypatch):
    monkeypatch.chdir(write("elsewhere/common.yaml", "seed: 9\n").parent)

    assert "common.yaml" in refusal(write("configs/a.yaml", "base: common.yaml\n"))


def test_a_missing_base_is_named(write):
    assert "gone.yaml" in refusal(write("a.yaml", "base: gone.yaml\n"))


def test_a_yaml_text_loads_like_the_file(write):
    assert load_config(yaml.safe_load(BASE)) == load_config(write("a.yaml", BASE))

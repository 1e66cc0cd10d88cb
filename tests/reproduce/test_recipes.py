"""Every cell's config is the paper's, and what ``small`` changes is said."""

from __future__ import annotations

import pytest

from raysim.config import choice_name
from raysim.methods import METHODS
from raysim.studies.reproduce import recipes
from raysim.studies.reproduce.costs import TRAINING_MINUTES, run_minutes, table_hours
from raysim.studies.reproduce.plan import plan
from raysim.studies.reproduce.recipes import (
    BASES,
    SCALES,
    TARGETS,
    config_digest,
    public_config,
    reduced_settings,
    run_config,
    with_weights_at_hand,
)

TRAINED = [t for t in TARGETS.values() if t.trains and not t.columns]
EVERY = [(target, cell) for target in TRAINED for cell in target.cells]
READY = [(target, cell) for target, cell in EVERY if cell.method in METHODS.names()]


def cell_of(name: str, address: str):
    target = TARGETS[name]
    return target, next(cell for cell in target.cells if cell.address == address)


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_has_a_config_with_its_tasks_noise_and_method(scale):
    for target, cell in READY:
        config = run_config(target, cell, seed=3, scale=scale)

        assert config.seed == 3
        assert config.data.partition.groups == cell.groups
        assert choice_name(config.data.noise) == target.noise
        assert choice_name(config.data.dataset) == cell.dataset
        assert choice_name(config.method) == cell.method


@pytest.mark.parametrize("dataset", ["mnist", "fashion_mnist", "cifar10"])
def test_rcc_pfl_full_is_the_papers_setting(dataset):
    config = run_config(*cell_of("rcc-pfl/table3", f"{dataset}/m5/single"), seed=0, scale="full")

    partition, train = config.data.partition, config.train
    assert (partition.clients, partition.split, partition.alpha) == (25, "dirichlet", 2.0)
    assert (partition.impurity, partition.impurity_rate) == ("foreign", 0.05)
    assert partition.min_client_size == 100
    assert (train.lr, train.weight_decay, train.epochs, train.optimizer) == (5e-5, 1e-3, 2, "adam")
    assert train.batch_size == (128 if dataset == "cifar10" else 32)
    assert config.data.noise.rate == 0.25
    assert config.data.server.per_class == 0
    assert config.server.weights == "uniform"
    assert config.data.features.dimension((28, 28, 1)) == 144


@pytest.mark.parametrize(
    ("dataset", "model", "clean"), [("cifar10", "resnet18", 200), ("svhn", "resnet10", 300)]
)
def test_fb_nll_full_is_the_papers_setting(dataset, model, clean):
    config = run_config(*cell_of("fb-nll/table6", f"{dataset}/m2/single"), seed=0, scale="full")

    partition, train = config.data.partition, config.train
    assert (partition.clients, partition.split) == (20, "iid")
    assert (partition.impurity, partition.impurity_rate) == ("pool", 0.08)
    assert (train.lr, train.momentum, train.weight_decay) == (5e-4, 0.5, 1e-3)
    assert (train.batch_size, train.epochs, train.rounds) == (64, 2, 80)
    assert (config.data.noise.rho, config.data.noise.beta) == (0.4, 0.2)
    assert choice_name(config.model) == model
    assert config.data.server.per_class == clean
    assert choice_name(config.data.extractor("correction")) == "resnet18"


def test_small_says_everything_it_changes():
    target, cell = cell_of("fb-nll/table9", "cifar10/m3/fb_nll")
    small = run_config(target, cell, seed=0, scale="small")

    reduced = reduced_settings(target, cell, "small")

    assert {"data.fraction", "model.name", "train.rounds", "train.lr"} <= reduced.keys()
    assert reduced["data.fraction"] == {"paper": 1.0, "here": small.data.fraction}
    assert reduced["model.name"]["paper"] == "resnet18"
    assert reduced["data.correction_features.kind"] == {"paper": "resnet18", "here": "lite0"}
    own = [key for key, value in reduced.items() if "paper" not in value]
    assert all(key.startswith("model.") for key in own)  # settings of the other network
    assert not {"seed", "name", "output"} & reduced.keys()
    assert reduced_settings(target, cell, "full") == {}


def test_the_way_to_the_gradient_is_no_reduction():
    target, cell = cell_of("fedrn/table2", "cifar10/s2/sym0.8/fedavg")
    kernels = {run_config(target, cell, seed=0, scale=s).train.kernel for s in ("small", "full")}

    reduced = reduced_settings(target, cell, "small")

    assert kernels == {"closed_form", "autograd"}
    assert "train.kernel" not in reduced
    assert "model.name" in reduced


def test_lite0_stands_in_where_resnet18_weights_cannot_be_had(monkeypatch):
    target, cell = cell_of("fb-nll/table9", "cifar10/m3/fb_nll")
    config = run_config(target, cell, seed=0, scale="full")

    monkeypatch.setattr(recipes, "has_resnet18_weights", lambda: False)
    instead, deviations = with_weights_at_hand(target, cell, config)

    assert choice_name(instead.data.extractor("correction")) == "lite0"
    assert choice_name(instead.data.extractor("grouping")) == "hog"
    assert len(deviations) == 1
    assert "EfficientNet-Lite0" in deviations[0]
    monkeypatch.setattr(recipes, "has_resnet18_weights", lambda: True)
    assert with_weights_at_hand(target, cell, config) == (config, ())


def test_weights_do_not_matter_to_a_method_that_uses_no_features(monkeypatch):
    target, cell = cell_of("fb-nll/table4", "svhn/m3/single")
    monkeypatch.setattr(recipes, "has_resnet18_weights", lambda: pytest.fail("asked"))

    config = run_config(target, cell, seed=0, scale="full")

    assert with_weights_at_hand(target, cell, config) == (config, ())


def test_methods_get_settings_of_their_own_per_scale(monkeypatch):
    own = {"both": ("method.grouping.rank=7",), "small": ("method.grouping.linkage=single",)}
    monkeypatch.setitem(recipes.METHOD_SETTINGS["fb-nll"], "fb_nll_minus", own)
    place = cell_of("fb-nll/table4", "cifar10/m3/fb_nll_minus")

    full, small = (run_config(*place, seed=0, scale=scale).method.grouping for scale in SCALES)

    assert (full.rank, full.linkage) == (7, "average")
    assert (small.rank, small.linkage) == (7, "single")


@pytest.mark.parametrize("method", ["fedcorr", "clipfl", "rhfl"])
def test_label_correction_methods_work_inside_the_groups_of_fb_nll(method):
    overrides = recipes._method_overrides("fb-nll", method, "full")

    assert overrides[0] == f"method={method}"
    assert "method.groups={kind: similarity}" in overrides


def test_the_runs_of_figure_3_are_those_of_table_ii(tmp_path):
    runs = []
    for name in ("rcc-pfl/table2", "rcc-pfl/figure3"):
        target, cell = cell_of(name, "cifar10/m3/optimum")
        (run,), _ = plan(target, [cell], [0], scale="full", out=tmp_path)
        runs.append(run)

    assert runs[0].job["run_dir"] == runs[1].job["run_dir"]
    assert runs[0].job["goal"] != runs[1].job["goal"]


def test_the_digest_changes_with_the_bits_and_not_with_the_place():
    target, cell = cell_of("rcc-pfl/table2", "mnist/m3/optimum")
    config = run_config(target, cell, seed=0, scale="full")
    other = run_config(target, cell, seed=1, scale="full")

    assert config_digest(config) != config_digest(other)
    assert not {"output", "runtime", "checkpoint"} & public_config(config).keys()


def test_first_seeds_and_cheap_cells_come_first(tmp_path):
    target = TARGETS["rcc-pfl/table2"]
    cells = [c for c in target.cells if c.method in METHODS.names()]

    runs, _ = plan(target, cells, [0, 1], scale="full", out=tmp_path)

    assert [run.seed for run in runs] == [0] * len(cells) + [1] * len(cells)
    assert runs[0].cell.dataset == "mnist"
    assert runs[len(cells) - 1].cell.dataset == "cifar10"


def test_every_table_has_a_cost_and_every_base_config_a_time():
    assert all(table_hours(target, scale, 1) > 0 for target in TARGETS.values() for scale in SCALES)
    assert TRAINING_MINUTES.keys() == BASES.keys()
    full, small = (run_minutes(*EVERY[0], scale) for scale in SCALES)
    assert full > small

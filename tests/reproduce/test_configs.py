"""Every cell's config is the paper's, what ``small`` changes is said, and what is compared."""

from __future__ import annotations

import dataclasses
import math
from itertools import product

import pytest
import yaml

from raysim.config import choice_name, dump_config, flat_values
from raysim.runs.record import RoundRecord, newest
from raysim.studies.reproduce import configs
from raysim.studies.reproduce.configs import (
    config_digest,
    paper_deviations,
    public_config,
    reduced_settings,
    run_config,
    with_weights_at_hand,
)
from raysim.studies.reproduce.measure import _mean_selection
from raysim.studies.reproduce.papers import (
    PAPERS,
    SCALES,
    TABLES,
    find_table,
    parse_seeds,
    select_cells,
)
from raysim.studies.reproduce.plan import plan
from raysim.studies.reproduce.results import rows_of, value_of


def place(name: str, address: str):
    (cell,) = select_cells(find_table(name), address)
    return find_table(name), cell


def config_of(name: str, address: str, scale: str = "full"):
    return run_config(*place(name, address), seed=0, scale=scale)


# ---- every cell ------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.trains])
def test_every_cell_has_a_config_that_its_method_accepts(name, scale):
    table = TABLES[name]
    for cell in table.cells:
        config = run_config(table, cell, seed=3, scale=scale)

        assert config.seed == 3
        assert choice_name(config.data.dataset) == cell.dataset
        assert choice_name(config.method) == table.paper.method(cell.row)
        config.method.check(config, classes=10, dimensions={"grouping": 512, "correction": 512})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "name", [n for n, t in TABLES.items() if t.trains and n.startswith(("rcc-pfl/", "fb-nll/"))]
)
def test_cells_of_our_papers_have_the_tasks_and_the_noise_that_they_are_named_after(name, scale):
    table = TABLES[name]
    noise = table.title.rpartition(", ")[2].removesuffix(" noise").replace("-", "_")
    for cell in table.cells:
        data = run_config(table, cell, seed=0, scale=scale).data

        assert f"m{data.partition.groups}" == cell.column
        assert choice_name(data.noise) == {"clean labels": "none"}.get(noise, noise)


# ---- the papers' settings --------------------------------------------------------------------

CIFAR = "cifar10/iid/rho1_tau0.5"
SMALL_CLIP = "cifar10/iid/mu0.8"


FULL = """
rcc-pfl/table3 mnist/m5/single: &rcc
  data:
    partition:
      {clients: 25, groups: 5, split: dirichlet, alpha: 2.0, impurity: foreign,
       impurity_rate: 0.05, min_client_size: 100}
    noise: {kind: class_dependent, rate: 0.25}
    server: {per_class: 0}
  train: {lr: 5.0e-5, weight_decay: 0.001, epochs: 2, optimizer: adam, batch_size: 32}
  server: {weights: uniform}
rcc-pfl/table3 fashion_mnist/m5/single: *rcc
rcc-pfl/table3 cifar10/m5/single:
  {<<: *rcc, train: {lr: 5.0e-5, weight_decay: 0.001, epochs: 2, optimizer: adam, batch_size: 128}}
fb-nll/table6 cifar10/m2/single: &fb
  data: &fb_data
    partition: {clients: 20, split: iid, impurity: pool, impurity_rate: 0.08}
    noise: {kind: uniform, rho: 0.4, beta: 0.2}
    server: {per_class: 200}
  model: {name: resnet18}
  train: {lr: 5.0e-4, momentum: 0.5, weight_decay: 0.001, batch_size: 64, epochs: 2, rounds: 80}
fb-nll/table6 svhn/m2/single:
  {<<: *fb, data: {<<: *fb_data, server: {per_class: 300}}, model: {name: resnet10}}
fb-nll/table8 svhn/m2/fb_nll_minus: {data: {noise: {kind: none}}}
fb-nll/table9 svhn/m2/fedcorr: {method: {groups: {kind: similarity}, iterations: 2}}
fb-nll/table10 svhn/m2/clipfl: {method: {groups: {kind: similarity}, score_rounds: 20}}
fb-nll/table11 svhn/m2/rhfl: {method: {groups: {kind: similarity}}}
fedfixer/table2 mnist/iid/rho1_tau0.5/fedfixer:
  data: {partition: {clients: 100}, noise: {rho: 1.0, beta: 0.5}}
  model: {name: lenet5}
  train:
    {rounds: 200, epochs: 5, batch_size: 32, lr: 0.1, momentum: 0.0, participation: 0.1,
     weight_decay: 0.0}
  method: {personal_lr: 0.5, distance: 15.0}
fedfixer/table2 cifar10/noniid/rho0.5_tau0.3/fedfixer:
  data: {partition: {class_rate: 0.7, alpha: 10.0}, noise: {rho: 0.5, beta: 0.3}}
  model: {name: resnet18}
  train: {rounds: 450, lr: 0.01}
  method: {personal_lr: 1.0}
fedfixer/table2 mnist/iid/rho0_tau0/fedprox:
  {method: {name: single}, train: {proximal: 0.01, weight_decay: 0.001}}
fedfixer/table2 mnist/iid/rho0_tau0/fedavg: {train: {proximal: 0.0}, data: {noise: {kind: none}}}
fedfixer/table2 mnist/iid/rho0_tau0/fedcorr:
  {train: {rounds: 405}, method: {iterations: 5, finetune_rounds: 200, mixup: 0.0}}
fedfixer/table4 mnist/p0.3/mr: {data: {noise: {beta: 0.5}, partition: {class_rate: 0.3}}}
fedfixer/table4 cifar10/p0.9/mr: {data: {noise: {beta: 0.3}, partition: {class_rate: 0.9}}}
fedfixer/table5 cifar10/iid/rho1_tau0.5/without_personal: {method: {without: personal}}
fedrn/table2 cifar10/s2/sym0.8/fedrn_k2:
  data: {partition: {shards_per_client: 2}, noise: {low: 0.0, high: 0.8}}
  train: {rounds: 500, epochs: 5, batch_size: 50, lr: 0.01, momentum: 0.5, augment: crop_flip}
  method: {neighbours: 2}
fedrn/table2 cifar10/dir0.5/mixed0.4/fedrn_k1:
  data: {partition: {kind: dirichlet_blockwise}, noise: {flips: mixed}}
  method: {neighbours: 1}
fedrn/table5 cifar10/s2/sym0.4/fedrn_alpha0.2_untuned:
  {method: {expertise: 0.2, tune: false, neighbours: 2}}
fedrn/table9 cifar10/s5/sym0.4/fedrn_random: {method: {choice: random}}
fedrn/table2 cifar10/s2/sym0.8/co_teaching: {train: {rounds: 500}, method: {ramp_rounds: null}}
clipfl/table1 cifar10/iid/mu0.8/fedadam+clipfl:
  train: {rounds: 120, epochs: 10, batch_size: 10, lr: 0.03}
  method:
    {score_rounds: 80, kept: 5, prune_rate: 0.5, loss: {smoothing: 0.1, temperature: 10.0}}
  server: {optimizer: fedadam, lr: 0.01, tau: 0.001}
  data: {server: {per_class: 500}}
clipfl/figure11 cifar10/iid/noisy0.3_mu0.1/fedavg:
  {method: {prune_rate: 0.0, loss: {smoothing: 0.1, temperature: 10.0}}}
clipfl/figure11 cifar10/iid/noisy0.3_mu0.1/fedavg+clipfl:
  {method: {prune_rate: 0.3}, data: {noise: {rate: 0.1, noisy_fraction: 0.3}}}
clipfl/figure9 cifar10/iid/mu0.5/clipfl_t30_m2:
  {method: {score_rounds: 30, kept: 2}, train: {rounds: 70}}
clipfl/figure10 cifar10/iid/mu0.5/clipfl_m3_p0.7: {method: {kept: 3, prune_rate: 0.7}}
clipfl/table4 cifar10/iid/mu0.8/fedavg+clipfl_synthetic: {method: {validation: {kind: generated}}}
"""


@pytest.mark.parametrize(("place", "settings"), yaml.safe_load(FULL).items())
def test_full_is_the_papers_setting(place, settings):
    found = flat_values(dump_config(config_of(*place.split())))

    expected = flat_values(settings)
    assert {key: found[key] for key in expected} == expected


def test_features_are_those_of_the_papers():
    ours = config_of("rcc-pfl/table3", "mnist/m5/single").data
    assert ours.features.dimension((28, 28, 1)) == 144
    for dataset in ("cifar10", "svhn"):
        data = config_of("fb-nll/table6", f"{dataset}/m2/single").data
        assert choice_name(data.extractor("correction")) == "resnet18"


def test_vanilla_prunes_nobody():
    found = config_of("clipfl/figure11", "cifar10/iid/noisy0.3_mu0.1/fedavg")

    assert found.method.kept > found.data.partition.clients


@pytest.mark.parametrize("row", ["cores2_local", "cores2_global", "fedfixer"])
@pytest.mark.parametrize("scale", SCALES)
def test_fedfixer_and_cores2_sieve_alike(scale, row):
    mnist = config_of("fedfixer/table2", f"mnist/iid/rho0_tau0/{row}", scale).method
    cifar = config_of("fedfixer/table2", f"{CIFAR}/{row}", scale).method
    photos = config_of("fedfixer/table3", f"clothing1m/noniid/{row}", scale).method

    assert (mnist.personal_lr, cifar.personal_lr) == (0.5, 1.0)
    assert (cifar.confidence, photos.confidence) == (2.0, 1.0)


@pytest.mark.parametrize("scale", SCALES)
def test_fedcorr_on_clothing1m_is_its_own_papers(scale):
    photos = config_of("fedfixer/table3", "clothing1m/noniid/fedcorr", scale).method
    other = config_of("fedfixer/table2", f"{CIFAR}/fedcorr", scale).method

    assert (photos.relabel_ratio, photos.confidence) == (0.8, 0.9)
    assert (other.relabel_ratio, other.confidence) == (0.5, 0.5)


def test_clipfls_small_setting_steps_a_tenth_without_its_soft_loss():
    lr = {
        row: config_of("clipfl/table3", f"{SMALL_CLIP}/{row}", "small").train.lr
        for row in ("fedavg", "clipfl", "fedcorr", "fedlsr")
    }
    assert lr == {"fedavg": 0.1, "clipfl": 0.1, "fedcorr": 0.01, "fedlsr": 0.01}


@pytest.mark.parametrize(("dataset", "scale"), [*product(("cifar10", "cifar100"), SCALES)])
def test_clipfls_synthetic_set_is_twice_the_clean_one(dataset, scale):
    cell = f"{dataset}/iid/mu0.8/fedavg+clipfl_synthetic"
    found = config_of("clipfl/table4", cell, scale)

    assert found.method.validation.per_class == 2 * found.data.server.per_class


@pytest.mark.parametrize("scale", SCALES)
def test_clipfls_fedcorr_visits_everyone_in_eight_turns(scale):
    found = config_of("clipfl/table3", f"{SMALL_CLIP}/fedcorr", scale)
    clients = found.data.partition.clients

    size = math.floor(found.method.sweep_fraction * clients)
    assert (math.ceil(clients / size), found.method.iterations) == (8, 1)


@pytest.mark.parametrize("dataset", ["cifar100", "mini_webvision"])
def test_fedrn_warms_up_for_100_of_1000_rounds_too(dataset):
    paper = PAPERS["fedrn"]
    tables = [t for t in TABLES.values() if t.paper is paper and t.trains]
    rows = {row for table in tables for row in table.rows}
    ours = {row for row in rows if paper.method(row) == "fedrn"}
    assert len(ours) == 1 + 5 + 2 * 6

    for row in (*ours, "joint_optimization", "selfie", "dividemix", "co_teaching"):
        setting = "ramp_rounds" if row == "co_teaching" else "warmup_rounds"
        assert f"method.{setting}=100" in paper.row_settings(row, "full", dataset)
        assert "_rounds=" not in " ".join(paper.row_settings(row, "small", dataset))
    table = next(t for t in tables if dataset in t.datasets)
    config = run_config(table, table.cells[-1], seed=0, scale="full")
    assert (config.train.rounds, config.method.warmup_rounds) == (1000, 100)


@pytest.mark.parametrize("row", ["fedrn_k2", "joint_optimization", "selfie", "dividemix"])
def test_fedrn_on_cifar10_warms_up_for_a_fifth_of_the_rounds(row):
    config = config_of("fedrn/table2", f"cifar10/s2/sym0.8/{row}")

    assert config.method.warmup_rounds is None
    assert [stage.rounds for stage in config.method.stages(config)] == [1, 100, 400]


def test_each_paper_has_its_number_of_runs():
    counts = {name: paper.seeds for name, paper in PAPERS.items()}

    assert counts == {"rcc-pfl": 5, "fb-nll": 5, "fedfixer": 5, "fedrn": 3, "clipfl": 1}
    assert parse_seeds(None, "full", counts["fedrn"]) == (0, 1, 2)


# ---- what is not the paper's -----------------------------------------------------------------


def test_small_says_everything_it_changes():
    table, cell = place("fb-nll/table9", "cifar10/m3/fb_nll")
    small = run_config(table, cell, seed=0, scale="small")

    reduced = reduced_settings(table, cell, "small")

    assert {"data.fraction", "model.name", "train.rounds", "train.lr"} <= reduced.keys()
    assert reduced["data.fraction"] == {"paper": 1.0, "here": small.data.fraction}
    assert reduced["model.name"]["paper"] == "resnet18"
    assert reduced["data.correction_features.kind"] == {"paper": "resnet18", "here": "lite0"}
    own = [key for key, value in reduced.items() if "paper" not in value]
    assert all(key.startswith("model.") for key in own)  # settings of the other network
    assert not {"seed", "name", "output"} & reduced.keys()
    assert reduced_settings(table, cell, "full") == {}


def test_small_of_fedfixer_on_mnist_reduces_the_rounds_alone():
    table, cell = place("fedfixer/table2", "mnist/noniid/rho1_tau0.5/fedfixer")

    assert reduced_settings(table, cell, "small") == {"train.rounds": {"paper": 200, "here": 40}}


def test_the_way_to_the_gradient_is_no_reduction():
    table, cell = place("fedrn/table2", "cifar10/s2/sym0.8/fedavg")
    kernels = {run_config(table, cell, seed=0, scale=s).train.kernel for s in ("small", "full")}

    reduced = reduced_settings(table, cell, "small")

    assert kernels == {"closed_form", "autograd"}
    assert "train.kernel" not in reduced
    assert "model.name" in reduced


def test_lite0_stands_in_where_resnet18_weights_cannot_be_had(monkeypatch):
    table, cell = place("fb-nll/table9", "cifar10/m3/fb_nll")
    config = run_config(table, cell, seed=0, scale="full")

    monkeypatch.setattr(configs, "has_resnet18_weights", lambda: False)
    instead, deviations = with_weights_at_hand(table, cell, config)

    assert choice_name(instead.data.extractor("correction")) == "lite0"
    assert choice_name(instead.data.extractor("grouping")) == "hog"
    assert len(deviations) == 1
    assert "EfficientNet-Lite0" in deviations[0]
    monkeypatch.setattr(configs, "has_resnet18_weights", lambda: True)
    assert with_weights_at_hand(table, cell, config) == (config, ())


def test_weights_do_not_matter_to_a_method_that_uses_no_features(monkeypatch):
    table, cell = place("fb-nll/table4", "svhn/m3/single")
    monkeypatch.setattr(configs, "has_resnet18_weights", lambda: pytest.fail("asked"))

    config = run_config(table, cell, seed=0, scale="full")

    assert with_weights_at_hand(table, cell, config) == (config, ())


def test_deviations_are_those_of_data_set_column_row_and_scale():
    def said(name: str, address: str, scale: str) -> str:
        return "; ".join(paper_deviations(*place(name, address), scale))

    assert said("fedrn/table2", "cifar10/s2/sym0.8/fedrn_k2", "full") == ""
    assert "file order" in said("fedrn/table2", "cifar10/dir0.5/sym0.8/fedrn_k2", "full")
    vit = ("clipfl/table1", "cifar10/iid/mu0.8/fedavg")
    assert "ViT-Tiny" in said(*vit, "full")
    assert "ViT-Tiny" not in said(*vit, "small")
    synthetic = ("clipfl/table4", f"{SMALL_CLIP}/fedavg+clipfl_synthetic", "small")
    assert "Stable Diffusion" in said(*synthetic)


# ---- runs ------------------------------------------------------------------------------------


def test_rows_have_settings_of_their_own_per_scale_and_data_set():
    rows = {
        "my_{rank}": {
            "method": "fb_nll_minus",
            "both": ["method.grouping.rank={rank}"],
            "small": ["method.grouping.linkage=single"],
            "both/svhn": ["method.grouping.linkage=complete"],
        }
    }
    table = TABLES["fb-nll/table4"]
    table = dataclasses.replace(
        table, rows=["my_7"], paper=dataclasses.replace(table.paper, rows=rows)
    )
    found = {
        (cell.dataset, scale): run_config(table, cell, seed=0, scale=scale).method.grouping
        for cell in table.cells
        for scale in SCALES
    }

    assert {grouping.rank for grouping in found.values()} == {7}
    assert {key: grouping.linkage for key, grouping in found.items()} == {
        ("cifar10", "full"): "average",
        ("cifar10", "small"): "single",
        ("svhn", "full"): "complete",
        ("svhn", "small"): "single",
    }


def test_the_runs_of_figure_3_are_those_of_table_ii(tmp_path):
    runs = []
    for name in ("rcc-pfl/table2", "rcc-pfl/figure3"):
        table, cell = place(name, "cifar10/m3/optimum")
        (run,), _ = plan(table, [cell], [0], scale="full", out=tmp_path)
        runs.append(run)

    assert runs[0].folder.root == runs[1].folder.root
    assert runs[0].goal != runs[1].goal


def test_the_digest_changes_with_the_bits_and_not_with_the_place():
    table, cell = place("rcc-pfl/table2", "mnist/m3/optimum")
    config, other = (run_config(table, cell, seed=seed, scale="full") for seed in (0, 1))

    assert config_digest(config) != config_digest(other)
    assert not {"output", "runtime", "checkpoint"} & public_config(config).keys()


def test_first_seeds_and_cheap_cells_come_first(tmp_path):
    table = TABLES["rcc-pfl/table2"]

    runs, _ = plan(table, table.cells, [0, 1], scale="full", out=tmp_path)

    assert [run.label["seed"] for run in runs] == ["0"] * 36 + ["1"] * 36
    assert runs[0].label["cell"].startswith("mnist/")
    assert runs[35].label["cell"].startswith("cifar10/")


def test_a_row_without_its_method_fails_when_planned_not_when_listed(tmp_path):
    table = TABLES["fedfixer/table2"]
    paper = dataclasses.replace(table.paper, rows={"mr": {"method": "not_yet"}})
    table = dataclasses.replace(table, paper=paper)
    cells = select_cells(table, "mnist/iid/rho0_tau0/mr,mnist/iid/rho0_tau0/rfl")

    runs, failures = plan(table, cells, [0], scale="small", out=tmp_path)

    assert [run.label["cell"] for run in runs] == ["mnist/iid/rho0_tau0/rfl"]
    assert [failure.cell.label["cell"] for failure in failures] == ["mnist/iid/rho0_tau0/mr"]
    assert "unknown method 'not_yet'" in failures[0].error


def test_every_table_has_a_cost_and_every_data_set_a_time():
    for table in TABLES.values():
        assert table.paper.minutes.keys() >= set(table.datasets)
        for cell in table.cells[:1]:
            full, small = (table.minutes(cell, scale) for scale in SCALES)
            assert full > small > 0 or not table.trains


# ---- values ----------------------------------------------------------------------------------


def test_the_value_that_the_paper_reports_is_compared():
    address = "cifar10/iid/mu0.8/fedavg+clipfl"
    result = {
        "cell": address,
        "seed": 0,
        "accuracy_percent": 50.0,
        "accuracy_last10": 0.6,
        "noisy_clients": {"precision": 0.9, "recall": 0.8},
    }

    def first(name: str):
        return next(r for r in rows_of(TABLES[name], [result]) if r.cell == address)

    table1 = first("clipfl/table1")
    assert (table1.values, table1.published.mean) == ((60.0,), 59.14)
    assert first("clipfl/table2").difference == pytest.approx(90.0 - 94.0)
    assert value_of(result, "last") == 50.0
    assert value_of({**result, "noisy_clients": None}, "noisy_clients") is None
    both = [r for r in rows_of(TABLES["fedrn/table4"], []) if r.cell.endswith("/fedavg")]
    assert [(r.what, r.published.mean) for r in both] == [("last", 20.80), ("top5", 45.0)]


def test_label_precision_is_a_mean_over_ten_rounds_and_clients_are_judged_last():
    selections = [{"precision": p, "recall": 0.5, "f_score": None} for p in (0.0, *[0.8] * 9, None)]
    records = [{"selection": own} for own in selections]
    records[3]["noisy_clients"] = {"precision": 0.1}
    records[5]["noisy_clients"] = {"precision": 0.2}

    # The first round is the eleventh from the end; an undefined precision does not count.
    means = {"precision": 0.8, "recall": 0.5, "f_score": None}
    records = [RoundRecord.from_json(plain) for plain in records]
    assert _mean_selection(records) == means
    assert _mean_selection([RoundRecord()]) is None
    assert newest(records, "noisy_clients") == {"precision": 0.2}
    assert newest(records, "top5") is None

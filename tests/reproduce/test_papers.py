"""Cells of FedFixer, FedRN and ClipFL: their configs and what is compared."""

from __future__ import annotations

import math
from itertools import product

import pytest

from raysim.config import choice_name
from raysim.methods import METHODS
from raysim.runs.record import RoundRecord, newest
from raysim.studies.reproduce import recipes
from raysim.studies.reproduce.papers import PAPERS
from raysim.studies.reproduce.plan import plan
from raysim.studies.reproduce.recipes import (
    SCALES,
    TARGETS,
    method_of,
    paper_deviations,
    parse_seeds,
    public_config,
    reduced_settings,
    run_config,
    seeds_of,
    select_cells,
)
from raysim.studies.reproduce.results import rows_of, value_of
from raysim.studies.reproduce.worker import _mean_selection


def config_of(name: str, address: str, scale: str = "full", seed: int = 0):
    target = TARGETS[name]
    (cell,) = select_cells(target, address)
    return run_config(target, cell, seed=seed, scale=scale)


def few_cells(target):
    """Cells that show every row and every column once."""
    seen: set[tuple[str, str]] = set()
    for cell in target.cells:
        new = {(cell.dataset, cell.method), (cell.dataset, cell.column)} - seen
        if len(new) == 2 or (new and cell.method == target.methods[0]):
            seen |= new
            yield cell


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("paper", PAPERS)
def test_every_row_and_column_has_a_config(paper, scale):
    for target in PAPERS[paper].targets:
        for cell in few_cells(target) if target.trains else ():
            config = run_config(target, cell, seed=3, scale=scale)

            assert config.seed == 3
            assert choice_name(config.data.dataset) == cell.dataset
            assert choice_name(config.method) == method_of(paper, cell.method)


def test_every_row_is_a_registered_method():
    rows = {(p, row) for p, paper in PAPERS.items() for t in paper.targets for row in t.methods}

    assert {method_of(*row) for row in rows} <= set(METHODS.names())


def test_fedfixer_full_is_the_setting_of_its_code():
    mnist = config_of("fedfixer/table2", "mnist/iid/rho1_tau0.5/fedfixer")
    cifar = config_of("fedfixer/table2", "cifar10/noniid/rho0.5_tau0.3/fedfixer")

    train = mnist.train
    assert (train.rounds, train.epochs, train.batch_size, train.lr) == (200, 5, 32, 0.1)
    assert (train.momentum, train.participation, train.weight_decay) == (0.0, 0.1, 0.0)
    assert mnist.data.partition.clients == 100
    assert (mnist.data.noise.rho, mnist.data.noise.beta) == (1.0, 0.5)
    assert (mnist.method.personal_lr, mnist.method.distance) == (0.5, 15.0)
    assert choice_name(mnist.model) == "lenet5"
    assert (cifar.train.rounds, cifar.train.lr, cifar.method.personal_lr) == (450, 0.01, 1.0)
    assert (cifar.data.partition.class_rate, cifar.data.partition.alpha) == (0.7, 10.0)
    assert (cifar.data.noise.rho, cifar.data.noise.beta) == (0.5, 0.3)
    assert choice_name(cifar.model) == "resnet18"


def test_rows_are_methods_with_settings_of_their_own():
    prox = config_of("fedfixer/table2", "mnist/iid/rho0_tau0/fedprox")
    clean = config_of("fedfixer/table2", "mnist/iid/rho0_tau0/fedavg")
    corrected = config_of("fedfixer/table2", "mnist/iid/rho0_tau0/fedcorr")
    alone = config_of("fedfixer/table5", "cifar10/iid/rho1_tau0.5/without_personal")

    assert choice_name(prox.method) == "single"
    assert (prox.train.proximal, prox.train.weight_decay) == (0.01, 0.001)
    assert (clean.train.proximal, choice_name(clean.data.noise)) == (0.0, "none")
    assert alone.method.without == "personal"
    how = corrected.method
    assert (how.iterations, how.finetune_rounds, how.mixup) == (5, 200, 0.0)
    assert corrected.train.rounds == 5 + 200 + 200


@pytest.mark.parametrize("scale", SCALES)
def test_cores2_sieves_at_the_personal_rate(scale):
    for row in ("cores2_local", "cores2_global"):
        mnist = config_of("fedfixer/table2", f"mnist/iid/rho0_tau0/{row}", scale)
        cifar = config_of("fedfixer/table2", f"cifar10/iid/rho0_tau0/{row}", scale)
        assert (mnist.method.personal_lr, cifar.method.personal_lr) == (0.5, 1.0)


def test_clipfls_small_setting_steps_a_tenth_without_its_soft_loss():
    lr = {
        row: config_of("clipfl/table3", f"cifar10/iid/mu0.8/{row}", "small").train.lr
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
    found = config_of("clipfl/table3", "cifar10/iid/mu0.8/fedcorr", scale)
    clients = found.data.partition.clients

    size = math.floor(found.method.sweep_fraction * clients)
    assert (math.ceil(clients / size), found.method.iterations) == (8, 1)


def test_fedrn_full_is_the_papers_setting():
    config = config_of("fedrn/table2", "cifar10/s2/sym0.8/fedrn_k2")

    train = config.train
    assert (train.rounds, train.epochs, train.batch_size) == (500, 5, 50)
    assert (train.lr, train.momentum, train.augment) == (0.01, 0.5, "crop_flip")
    assert config.data.partition.shards_per_client == 2
    assert (config.data.noise.low, config.data.noise.high) == (0.0, 0.8)
    assert [stage.rounds for stage in config.method.stages(config)] == [1, 100, 400]
    other = config_of("fedrn/table2", "cifar10/dir0.5/mixed0.4/fedrn_k1")
    assert (other.method.neighbours, other.data.noise.flips) == (1, "mixed")
    assert choice_name(other.data.partition) == "dirichlet_blockwise"
    untuned = config_of("fedrn/table5", "cifar10/s2/sym0.4/fedrn_alpha0.2_untuned").method
    assert (untuned.expertise, untuned.tune, untuned.neighbours) == (0.2, False, 2)
    assert config_of("fedrn/table9", "cifar10/s5/sym0.4/fedrn_random").method.choice == "random"


@pytest.mark.parametrize("table", [3, 4, 7])
def test_fedrn_warms_up_for_100_of_1000_rounds_too(table):
    target = TARGETS[f"fedrn/table{table}"]
    rows = [row for row in target.methods if row not in ("oracle", "fedavg", "rfl")]
    for cell in (cell for cell in target.cells if cell.method in rows):
        full, small = (
            public_config(run_config(target, cell, seed=0, scale=scale)) for scale in SCALES
        )
        setting = "ramp_rounds" if cell.method == "co_teaching" else "warmup_rounds"

        assert (full["train"]["rounds"], full["method"][setting]) == (1000, 100)
        assert small["method"][setting] is None


def test_every_fedrn_variant_would_warm_up_for_100_of_1000_rounds():
    known = PAPERS["fedrn"].rows
    rows = [row for row in known if method_of("fedrn", row) == "fedrn"]

    assert len(rows) == 1 + 5 + 2 * 6
    for row in rows:
        for dataset in ("cifar100", "mini_webvision"):
            assert known[row][f"full/{dataset}"] == ("method.warmup_rounds=100",)


def test_fedrn_on_cifar10_warms_up_for_a_fifth_of_the_rounds():
    for row in ("fedrn_k2", "joint_optimization", "selfie", "dividemix"):
        config = config_of("fedrn/table2", f"cifar10/s2/sym0.8/{row}")

        assert public_config(config)["method"]["warmup_rounds"] is None
        assert [stage.rounds for stage in config.method.stages(config)] == [1, 100, 400]
    peers = config_of("fedrn/table2", "cifar10/s2/sym0.8/co_teaching")
    assert (peers.train.rounds, peers.method.ramp_rounds) == (500, None)


@pytest.mark.parametrize("scale", SCALES)
def test_on_clothing1m_beta_is_1_and_fedcorr_is_its_own_papers(scale):
    def method(row: str):
        return config_of("fedfixer/table3", f"clothing1m/noniid/{row}", scale).method

    rows = ("cores2_local", "cores2_global", "fedfixer")
    assert [method(row).confidence for row in rows] == [1.0, 1.0, 1.0]
    assert (method("fedcorr").relabel_ratio, method("fedcorr").confidence) == (0.8, 0.9)
    other = "cifar10/iid/rho1_tau0.5"
    assert config_of("fedfixer/table2", f"{other}/cores2_local", scale).method.confidence == 2.0
    repaired = config_of("fedfixer/table2", f"{other}/fedcorr", scale).method
    assert (repaired.relabel_ratio, repaired.confidence) == (0.5, 0.5)


def test_clipfl_full_is_the_papers_setting_and_vanilla_prunes_nobody():
    pruned = config_of("clipfl/table1", "cifar10/iid/mu0.8/fedadam+clipfl")
    vanilla = config_of("clipfl/figure11", "cifar10/iid/noisy0.3_mu0.1/fedavg")
    rate = config_of("clipfl/figure11", "cifar10/iid/noisy0.3_mu0.1/fedavg+clipfl").method

    train, how = pruned.train, pruned.method
    assert (train.rounds, train.epochs, train.batch_size, train.lr) == (120, 10, 10, 0.03)
    assert (how.score_rounds, how.kept, how.prune_rate) == (80, 5, 0.5)
    assert (how.loss.smoothing, how.loss.temperature) == (0.1, 10.0)
    assert (pruned.server.optimizer, pruned.server.lr, pruned.server.tau) == ("fedadam", 0.01, 1e-3)
    assert pruned.data.server.per_class * 10 == 5000
    assert (vanilla.method.prune_rate, vanilla.method.loss) == (0.0, how.loss)
    assert vanilla.method.kept > vanilla.data.partition.clients
    assert rate.prune_rate == 0.3
    early = config_of("clipfl/figure9", "cifar10/iid/mu0.5/clipfl_t30_m2")
    assert (early.method.score_rounds, early.method.kept, early.train.rounds) == (30, 2, 70)


def test_small_of_fedfixer_on_mnist_reduces_the_rounds_alone():
    target = TARGETS["fedfixer/table2"]
    (cell,) = select_cells(target, "mnist/noniid/rho1_tau0.5/fedfixer")

    assert reduced_settings(target, cell, "small") == {"train.rounds": {"paper": 200, "here": 40}}


def test_deviations_are_those_of_data_set_column_and_scale():
    table, clip = TARGETS["fedrn/table2"], TARGETS["clipfl/table1"]
    (shards,) = select_cells(table, "cifar10/s2/sym0.8/fedrn_k2")
    (blocks,) = select_cells(table, "cifar10/dir0.5/sym0.8/fedrn_k2")
    (vit,) = select_cells(clip, "cifar10/iid/mu0.8/fedavg")

    assert paper_deviations(table, shards, "full") == ()
    assert "file order" in paper_deviations(table, blocks, "full")[0]
    assert any("ViT-Tiny" in text for text in paper_deviations(clip, vit, "full"))
    assert not any("ViT-Tiny" in text for text in paper_deviations(clip, vit, "small"))


def test_each_paper_has_its_number_of_runs():
    counts = {paper: seeds_of(PAPERS[paper].targets[0]) for paper in PAPERS}

    assert counts == {"rcc-pfl": 5, "fb-nll": 5, "fedfixer": 5, "fedrn": 3, "clipfl": 1}
    assert parse_seeds(None, "full", counts["fedrn"]) == (0, 1, 2)


def test_a_row_without_its_method_fails_when_planned_not_when_listed(monkeypatch, tmp_path):
    monkeypatch.setitem(recipes.METHOD_SETTINGS["fedfixer"], "mr", {"method": ("not_yet",)})
    target = TARGETS["fedfixer/table2"]
    cells = select_cells(target, "mnist/iid/rho0_tau0/mr,mnist/iid/rho0_tau0/fedavg")

    runs, failures = plan(target, cells, [0], scale="small", out=tmp_path)

    assert [run.cell.method for run in runs] == ["fedavg"]
    assert [failure.cell for failure in failures] == ["mnist/iid/rho0_tau0/mr"]
    assert "unknown method 'not_yet'" in failures[0].error


def test_synthetic_validation_images_are_drawn_and_said_to_be_others_than_the_papers():
    config = config_of("clipfl/table4", "cifar10/iid/mu0.5/fedavg+clipfl_synthetic")

    assert config.method.validation.kind == "generated"
    assert "Stable Diffusion" in PAPERS["clipfl"].deviations["fedavg+clipfl_synthetic"]


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
        return next(r for r in rows_of(TARGETS[name], [result]) if r.cell == address)

    assert (first("clipfl/table1").values, first("clipfl/table1").published.mean) == (
        (60.0,),
        59.14,
    )
    assert first("clipfl/table2").difference == pytest.approx(90.0 - 94.0)
    assert value_of(result, "last") == 50.0
    assert value_of({**result, "noisy_clients": None}, "noisy_clients") is None
    both = [r for r in rows_of(TARGETS["fedrn/table4"], []) if r.cell.endswith("/fedavg")]
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


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("name", [n for n, target in TARGETS.items() if target.trains])
def test_no_method_refuses_the_config_of_a_cell(name, scale):
    dimensions = {"grouping": 512, "correction": 512}
    for cell in TARGETS[name].cells:
        config = run_config(TARGETS[name], cell, seed=0, scale=scale)

        config.method.check(config, classes=10, dimensions=dimensions)

"""X + FB-NLL: where the correction stands, whose groups are used, and that labels are repaired."""

import json

import pytest

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.methods.method import stages_of

HYBRIDS = ("clipfl_fb_nll", "fedcorr_fb_nll", "rhfl_fb_nll")
DIMENSIONS = {"grouping": 144, "correction": 144}
QUICK = ("train.rounds=4", "train.epochs=1")


def configured(method, *overrides):
    return load_config("quickstart", [f"method={method}", *overrides])


def stages(method, *overrides):
    config = configured(method, "train.rounds=80", *overrides)
    return [(stage.name, stage.rounds) for stage in stages_of(config)]


@pytest.mark.parametrize(("where", "at"), [("start", 1), ("stage1", 2), ("stage2", 3)])
def test_fedcorr_repairs_labels_before_or_between_its_stages(where, at):
    plain = stages("fedcorr")

    found = stages("fedcorr_fb_nll", f"method.integration={where}")

    assert found == [*plain[:at], ("correct", 1), *plain[at:]]


def test_the_printed_tables_repair_after_fedcorrs_first_stage():
    names = [name for name, _ in stages("fedcorr_fb_nll")]

    assert names == ["group", "identify", "correct", "finetune", "train"]


@pytest.mark.parametrize(("where", "at"), [("score", 1), ("train", 2)])
def test_clipfl_repairs_labels_before_either_phase(where, at):
    plain = stages("clipfl")

    found = stages("clipfl_fb_nll", f"method.correct_before={where}")

    assert found == [*plain[:at], ("correct", 1), *plain[at:]]
    assert plain == [("group", 1), ("score", 20), ("train", 60)]


def test_rhfl_repairs_labels_first():
    assert stages("rhfl_fb_nll") == [("group", 1), ("correct", 1), ("train", 80)]


@pytest.mark.parametrize(("where", "at"), [("pretrain", 1), ("train", 2)])
def test_rhfl_repairs_labels_before_or_after_its_clients_train_alone(where, at):
    plain = stages("rhfl", "method.pretrain_epochs=3")

    found = stages("rhfl_fb_nll", "method.pretrain_epochs=3", f"method.correct_before={where}")

    assert plain == [("group", 1), ("pretrain", 1), ("train", 80)]
    assert found == [*plain[:at], ("correct", 1), *plain[at:]]


def test_correction_before_a_pretraining_that_is_off_is_refused():
    config = configured("rhfl_fb_nll", "method.correct_before=pretrain")

    with pytest.raises(ConfigError, match=r"pretrain_epochs is 0.*; raise method\.pretrain_epochs"):
        config.method.check(config, classes=10, dimensions=DIMENSIONS)


@pytest.mark.parametrize("method", HYBRIDS)
def test_a_hybrid_groups_by_similarity_and_knows_no_truth(method):
    chosen = configured(method).method

    assert chosen.uses == ("grouping", "correction")
    assert chosen.privileges == ()


@pytest.mark.parametrize("base", ["clipfl", "fedcorr", "rhfl"])
def test_groups_are_one_those_of_fb_nll_or_the_true_ones(base):
    one, alike, true = (
        configured(base, f"method.groups={{kind: {kind}}}").method
        for kind in ("one", "similarity", "tasks")
    )

    assert (one.uses, one.privileges) == ((), ())
    assert (alike.uses, alike.privileges) == (("grouping",), ())
    assert (true.uses, true.privileges) == ((), ("tasks",))


@pytest.mark.parametrize("method", HYBRIDS)
def test_labels_are_repaired_in_the_groups_of_fb_nll(run_tiny, method):
    found = run_tiny(method, base=QUICK)
    alone = run_tiny(method.removesuffix("_fb_nll"), "method.groups={kind: similarity}", base=QUICK)

    records = [json.loads(line) for line in (found.run_dir / "rounds.jsonl").open()]
    repaired = next(r for r in records if r["stage"] == "correct")
    assert repaired["labels"]["noise_after"] < repaired["labels"]["noise_before"]
    assert found.summary["labels"]["noise_after"] < alone.summary["labels"]["noise_after"]
    assert found.summary["groups"] == alone.summary["groups"]
    assert found.summary["correction"]["rank"] >= 1  # calibrated, and written into the result
    one, two = (set(r.summary["digest"]["models"].values()) for r in (found, alone))
    assert not one & two


def test_true_groups_are_those_of_the_optimum(run_tiny):
    found = run_tiny("clipfl", "method.groups={kind: tasks}", base=QUICK)

    assert found.summary["groups"] == run_tiny("optimum", base=QUICK).summary["groups"]
    assert found.summary["ari"] == 1.0


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*HYBRIDS, "fb_nll"])
def test_no_clean_image_is_refused_by_every_method_that_repairs_labels(method):
    config = configured(method, "data.server.per_class=0")

    with pytest.raises(ConfigError, match=r"data\.server\.per_class is 0, but .*; raise"):
        config.method.check(config, classes=10, dimensions=DIMENSIONS)


@pytest.mark.parametrize("method", HYBRIDS)
def test_ranks_above_the_features_are_refused(method):
    config = configured(method, "method.correction.rank=145")

    with pytest.raises(ConfigError, match=r"method\.correction\.rank is 145, .*dimension 144"):
        config.method.check(config, classes=10, dimensions=DIMENSIONS)


@pytest.mark.parametrize(
    ("method", "rounds", "needed"),
    [("fedcorr", 3, 4), ("fedcorr_fb_nll", 3, 4), ("clipfl", 1, 2), ("clipfl_fb_nll", 1, 2)],
)
def test_too_few_rounds_for_all_stages_are_refused(method, rounds, needed):
    config = configured(method, f"train.rounds={rounds}")

    text = rf"train\.rounds is {rounds}, but .* at least {needed}; raise train\.rounds or shorten"
    with pytest.raises(ConfigError, match=text):
        config.method.check(config, classes=10, dimensions=DIMENSIONS)


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("clipfl_fb_nll", "correct_before"),
        ("fedcorr_fb_nll", "integration"),
        ("rhfl_fb_nll", "correct_before"),
    ],
)
def test_a_stage_that_does_not_exist_is_named_with_those_that_do(method, setting):
    with pytest.raises(ConfigError, match=rf"method\.{setting} must be '.*' or '.*', got 'finish'"):
        configured(method, f"method.{setting}=finish")


def test_unknown_groups_are_refused():
    with pytest.raises(ConfigError, match=r"method\.groups\.kind .*got 'two'"):
        configured("rhfl", "method.groups.kind=two")

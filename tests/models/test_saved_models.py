"""Model files: the run's own bits, readable by safetensors and torch alone, complete or absent."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from raysim.errors import ConfigError, DataError, OutputError
from raysim.models.params import layout
from raysim.models.zoo import Logistic, Mlp, SmallCnn
from raysim.runs.models import Commit, RunModels, export_models, file_name
from raysim.runs.saved_models import ENTRY, _layout, from_bytes, load_model, model_of
from raysim.storage.checkpoint import read_manifest, read_object

SHORT = ("train.rounds=2", "train.epochs=1")
CNN = ("model=small_cnn", "train.lr=0.1", *SHORT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of a dense model and one of a network with batch norm, by name."""
    from raysim.config import load_config
    from raysim.experiment import Experiment

    root = tmp_path_factory.mktemp("runs")
    for name, settings in {"dense": SHORT, "cnn": CNN}.items():
        config = load_config(
            "quickstart", [*settings, "runtime.kind=local", f"output={root / name}"]
        )
        Experiment(config).run()
    return root


@pytest.mark.parametrize("kind", ["dense", "cnn"])
def test_files_hold_the_checkpoints_bits_under_the_networks_names(runs, kind):
    manifest = read_manifest(runs / kind / "checkpoint")
    index = json.loads((runs / kind / "models" / "index.json").read_text())

    assert [entry["name"] for entry in index["files"]] == ["group/0", "group/1", "group/2"]
    for entry in index["files"]:
        path = runs / kind / "models" / entry["file"]
        tree = read_object(runs / kind / "checkpoint", manifest["models"][entry["name"]])
        arrays = load_file(path)  # by the library alone
        facts = load_model(path).facts
        shapes = layout(model_of(facts.model), facts.image_shape, facts.classes)
        for part in ("trainable", "buffers"):
            names = [name for name, _ in getattr(shapes, part)]
            joined = [arrays.pop(name).reshape(-1) for name in names]
            flat = np.concatenate(joined) if joined else np.zeros(0, np.float32)
            assert flat.tobytes() == tree[part].tobytes()
        assert arrays == {}
        assert entry["digest"] == facts.digest == manifest["models"][entry["name"]]
        assert entry["bytes"] == path.stat().st_size


def test_the_header_says_where_the_weights_come_from(runs):
    result = json.loads((runs / "cnn" / "result.json").read_text())
    federation = json.loads((runs / "cnn" / "environment.json").read_text())["federation"]

    for group in range(3):
        members = [k for k, g in enumerate(result["groups"]) if g == group]
        with safe_open(runs / "cnn" / "models" / f"group-{group}.safetensors", "np") as file:
            facts = json.loads(file.metadata()[ENTRY])
        assert facts["clients"] == members
        assert facts["tasks"] == [
            federation["tasks"][t] for t in {federation["task_of"][k] for k in members}
        ]
        assert facts["model"] == {"name": "small_cnn", "widths": [16, 32]}
        assert facts["class_names"] == federation["class_names"]
        assert (facts["classes"], facts["image_shape"]) == (10, [8, 8, 1])
        assert (facts["method"], facts["dataset"], facts["seed"]) == ("fb_nll", "digits", 0)
        assert (facts["round"], facts["kernel"]) == (4, "autograd")  # group, correct, 2 rounds
        assert (facts["pixels"], facts["normalize"]) == ("uint8", "channel")


@pytest.mark.parametrize("kind", ["dense", "cnn"])
def test_torch_and_safetensors_alone_give_the_accuracy_of_the_run(runs, kind):
    import torch
    from safetensors.torch import load_file as load_torch
    from sklearn.datasets import load_digits

    path = runs / kind / "models" / "group-1.safetensors"
    saved = load_model(path)
    weights = load_torch(path)
    network = (Logistic() if kind == "dense" else SmallCnn()).build((8, 8, 1), 10)
    network.load_state_dict(weights)
    network.eval()
    pixels, labels = load_digits(return_X_y=True)
    wanted = np.isin(labels, saved.facts.tasks[0])
    images = np.rint(pixels * (255 / 16)).reshape(-1, 1, 8, 8)[wanted] / 255
    images = torch.tensor((images - saved.facts.mean[0]) / saved.facts.std[0], dtype=torch.float32)
    with torch.inference_mode():
        by_hand, by_us = network(images), saved.build()(images)

    assert torch.equal(by_hand, by_us)
    from raysim.steps.local_training import client_logits

    arguments = {"model": saved.model, "classes": 10, "kernel": saved.facts.kernel}
    ours = client_logits(saved.tree, images.numpy(), arguments)
    # Two orders of float32 sums; logits are of order 10.
    np.testing.assert_allclose(by_hand.numpy(), ours, atol=2e-5)


@pytest.mark.parametrize("model", [Logistic(), Mlp(hidden=7)])
def test_the_layout_of_dense_models_is_torchs(model):
    assert _layout(model, (5, 4, 3), 6) == layout(model, (5, 4, 3), 6)


def test_equal_runs_write_equal_files(runs, run_tiny, tmp_path):
    run_tiny("fb_nll", base=CNN, folder="again")

    for file in sorted((runs / "cnn" / "models").iterdir()):
        assert file.read_bytes() == (tmp_path / "again" / "models" / file.name).read_bytes()


def test_a_model_per_client_has_a_file_per_client(run_tiny, tmp_path):
    run_tiny("rhfl", folder="rhfl", base=SHORT)
    run_tiny("local_only", folder="alone", base=SHORT)

    rhfl, alone = RunModels(tmp_path / "rhfl"), RunModels(tmp_path / "alone")
    assert rhfl.names == [f"client/{k}" for k in range(12)]
    assert alone.names == [f"group/{k}" for k in range(12)]
    for models in (rhfl, alone):
        assert [models.clients(name) for name in models.names] == [(k,) for k in range(12)]
    assert load_model(tmp_path / "rhfl" / "models" / "client-7.safetensors").facts.clients == (7,)


def test_too_many_models_are_left_to_export(run_tiny, tmp_path, monkeypatch):
    import raysim.runs.models as model_files

    monkeypatch.setattr(model_files, "MOST", 5)
    run_tiny("local_only", folder="run", base=SHORT)
    index = json.loads((tmp_path / "run" / "models" / "index.json").read_text())

    assert (index["files"], index["left_out"]) == ([], 12)
    models = RunModels(tmp_path / "run")
    assert len(models.names) == 12
    assert models.load("group/3").facts.clients == (3,)  # from the checkpoint
    with pytest.raises(ConfigError, match="12 models, one per client; --all"):
        export_models(tmp_path / "run")
    assert len(export_models(tmp_path / "run", everything=True)) == 12


def test_export_makes_the_runs_own_files_again(runs, tmp_path):
    import shutil

    old = tmp_path / "old"
    shutil.copytree(runs / "cnn", old)
    shutil.rmtree(old / "models")  # a run from before there were such files

    files = export_models(old)

    assert files == [file_name(f"group/{g}") for g in range(3)]
    export_models(old, tmp_path / "elsewhere")
    for file in sorted((runs / "cnn" / "models").iterdir()):
        assert (old / "models" / file.name).read_bytes() == file.read_bytes()
        assert (tmp_path / "elsewhere" / file.name).read_bytes() == file.read_bytes()


def test_a_run_at_a_url_has_its_models_there(run_tiny):
    place = "memory://saved-models/run"
    run_tiny("single", f"output={place}", base=SHORT)

    models = RunModels(place)
    assert models.names == ["group/0"]
    assert models.load("group/0").facts.clients == tuple(range(12))


def test_only_models_that_somebody_uses_are_named_in_order():
    commit = Commit(3, {0: 10, 1: 2, 2: 10}, dict.fromkeys(["group/10", "moments/2", "group/2"]))

    assert commit.names == ["group/2", "group/10"]
    assert commit.clients("group/10") == (0, 2)


def test_a_method_of_two_networks_saves_its_first_one(run_tiny, tmp_path):
    run_tiny("co_teaching", folder="two", base=SHORT)
    file = tmp_path / "two" / "models" / "group-0.safetensors"
    content = bytearray(file.read_bytes())

    assert sorted(load_model(file).tree) == ["buffers", "trainable"]
    content[-9] ^= 1
    with pytest.raises(DataError, match=r"m\.safetensors must be .* another digest"):
        from_bytes(bytes(content), "m.safetensors")


@pytest.mark.parametrize("content", [b"", b'\x08\0\0\0\0\0\0\0{"a": 1}', b"x" * 100])
def test_a_foreign_file_is_refused_by_name(content):
    with pytest.raises(DataError, match=r"m\.safetensors must be a model file of raysim, got"):
        from_bytes(content, "m.safetensors")


def test_a_cut_file_is_refused_by_name(runs):
    content = (runs / "cnn" / "models" / "group-0.safetensors").read_bytes()

    with pytest.raises(DataError, match=r"m\.safetensors must be a model file"):
        from_bytes(content[:-7], "m.safetensors")


def test_a_run_without_models_says_what_is_missing(runs, tmp_path):
    (tmp_path / "config.yaml").write_text((runs / "dense" / "config.yaml").read_text())

    with pytest.raises(Exception, match=r"holds no models: neither models/index\.json nor a check"):
        _ = RunModels(tmp_path).names
    with pytest.raises(DataError, match="no run directory at"):
        RunModels(tmp_path / "nothing")


def test_export_replaces_a_damaged_index_and_no_foreign_one(run_tiny, tmp_path):
    run = run_tiny("single", base=("train.rounds=1",))
    (run.run_dir / "models" / "index.json").write_text("{")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.json").write_text('{"mine": 1}')

    assert export_models(run.run_dir) == ["group-0.safetensors"]
    assert json.loads((run.run_dir / "models" / "index.json").read_text())["method"] == "single"
    with pytest.raises(OutputError, match="is not one of `raysim export`"):
        export_models(run.run_dir, tmp_path / "site")

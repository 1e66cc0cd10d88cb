import json

import numpy as np
import pytest
import torch

from raysim.config import load_config
from raysim.errors import ConfigError
from raysim.experiment import Experiment
from raysim.models.params import initial_tree, layout, load_tree, module_for, named_arrays, to_tree
from raysim.models.zoo import (
    Cnn,
    FourConv,
    LeNet5,
    Logistic,
    Mlp,
    MobileNet,
    NineConv,
    ResNet10,
    ResNet50,
    SmallCnn,
    VitTiny,
)

SHAPE, CLASSES = (9, 9, 2), 4
SMALL = {"patch": 3, "width": 12, "depth": 1}


def stored_module(model, shape=SHAPE, classes=CLASSES):
    """A network with weights unlike any initial ones."""
    module = model.build(shape, classes)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return module


def vit_state():
    return stored_module(VitTiny(**SMALL)).state_dict()


def save(state, path):
    torch.save(state, path)
    return str(path)


def save_safetensors(arrays, path, *, dtype="F32"):
    """The format written out: 8 bytes of header length, JSON, bytes in order."""
    header, blobs, at = {"__metadata__": {"made": "by a test"}}, [], 0
    for name, tensor in arrays.items():
        blobs.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        offsets = [at, at + len(blobs[-1])]
        kind = "I64" if tensor.dtype == torch.int64 else dtype
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        at = offsets[1]
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))
    return str(path)


PLAIN = [Logistic, Mlp, Cnn, SmallCnn, LeNet5, FourConv, NineConv]


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_networks_start_from_files_too(kind, tmp_path):
    shape = (32, 32, 2)
    module = stored_module(kind(), shape)
    model = kind(weights=save(module.state_dict(), tmp_path / "w.pth"))

    model.check(shape)
    tree, other = (initial_tree(m, shape, CLASSES, seed=0) for m in (model, kind()))

    assert tree["trainable"].tobytes() == to_tree(module)["trainable"].tobytes()
    assert tree["trainable"].tobytes() != other["trainable"].tobytes()


@pytest.mark.parametrize("kind", PLAIN)
def test_weights_of_another_plain_network_are_refused(kind, tmp_path):
    stored = Mlp(hidden=3) if kind is not Mlp else Cnn()
    path = save(stored_module(stored, (32, 32, 2)).state_dict(), tmp_path / "w.pth")

    with pytest.raises(
        ConfigError, match=r"model\.weights: .*; use a state_dict|; .*: use a state"
    ):
        kind(weights=path).check((32, 32, 2))


@pytest.mark.parametrize("kind", [VitTiny, ResNet10])
def test_a_run_starts_from_the_weights_of_the_file(kind, tmp_path):
    sizes = SMALL if kind is VitTiny else {}
    module = stored_module(kind(**sizes))
    model = kind(**sizes, weights=save(module.state_dict(), tmp_path / "w.pth"))

    model.check(SHAPE)
    tree = initial_tree(model, SHAPE, CLASSES, seed=0)

    expected = to_tree(module)
    assert all(np.array_equal(tree[part], expected[part]) for part in expected)


def test_other_seeds_and_calls_give_the_same_stored_weights(tmp_path):
    model = VitTiny(**SMALL, weights=save(vit_state(), tmp_path / "w.pt"))

    trees = [initial_tree(model, SHAPE, CLASSES, seed=seed)["trainable"] for seed in (0, 0, 1)]

    assert np.array_equal(trees[0], trees[1])
    assert np.array_equal(trees[0], trees[2])


@pytest.mark.parametrize(
    ("dtype", "kind"), [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)]
)
def test_safetensors_files_are_read(dtype, kind, tmp_path):
    module = stored_module(ResNet10())
    stored = {k: t.to(kind) if t.is_floating_point() else t for k, t in module.state_dict().items()}
    path = save_safetensors(stored, tmp_path / "w.safetensors", dtype=dtype)

    tree = initial_tree(ResNet10(weights=path), SHAPE, CLASSES, seed=0)

    module.load_state_dict(stored)  # rounded to the file's numbers
    expected = to_tree(module)
    assert all(np.array_equal(tree[part], expected[part]) for part in expected)


@pytest.mark.parametrize("with_head", [True, False])
def test_a_head_of_other_classes_or_none_stays_random(with_head, tmp_path):
    state = {k: t for k, t in vit_state().items() if with_head or not k.startswith("head.")}
    model = VitTiny(**SMALL, weights=save(state, tmp_path / "w.pt"))
    classes = CLASSES + 1
    shapes = layout(model, SHAPE, classes)

    found = named_arrays(initial_tree(model, SHAPE, classes, seed=3), shapes)

    random = named_arrays(initial_tree(VitTiny(**SMALL), SHAPE, classes, seed=3), shapes)
    for name in found:
        expected = random[name] if name.startswith("head.") else state[name].numpy()
        assert np.array_equal(found[name], expected), name


@pytest.mark.parametrize(
    ("kind", "theirs", "last"),
    [(ResNet50, "resnet50", "fc"), (MobileNet, "mobilenet_v2", "classifier")],
)
def test_torchvisions_own_files_give_its_features(kind, theirs, last, tmp_path):
    import torchvision

    network = getattr(torchvision.models, theirs)().eval()  # 1000 classes, as for ImageNet
    generator = torch.Generator().manual_seed(0)
    for name, tensor in network.named_buffers():
        if "running" in name:
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    path = save(network.state_dict(), tmp_path / "imagenet.pth")
    model = kind(weights=path, **({"stem_stride": 2} if kind is MobileNet else {}))
    shape = (40, 40, 3)
    module = module_for(model, shape, 14).eval()

    model.check(shape)
    load_tree(module, initial_tree(model, shape, 14, seed=0))
    setattr(network, last, torch.nn.Identity())
    images = torch.randn(2, 3, 40, 40, generator=generator)

    # rounding of other kernels: module_for chooses the memory order channels_last
    torch.testing.assert_close(module.features(images), network(images), rtol=1e-3, atol=1e-4)


def test_names_without_our_prefix_are_understood(tmp_path):
    state = {name.removeprefix("body."): tensor for name, tensor in vit_state().items()}
    model = VitTiny(**SMALL, weights=save(state, tmp_path / "timm.pt"))

    tree = initial_tree(model, SHAPE, CLASSES, seed=0)

    expected = to_tree(stored_module(VitTiny(**SMALL)))
    assert np.array_equal(tree["trainable"], expected["trainable"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"body.norm.bias": torch.zeros(5)},
            r"body.norm.bias with shape \(12,\) of floats, got \(5,\) of float32; .*other images",
        ),
        ({"body.norm.bias": torch.zeros(12, dtype=torch.int32)}, r"of floats, got \(12,\) of int"),
        ({"body.norm.bias": None}, r"must hold body.norm.bias \(12,\), got \d+ other arrays"),
        ({"body.norm.extra": torch.zeros(3)}, r"holds body.norm.extra \(3,\), which the network"),
    ],
)
def test_the_first_array_that_does_not_fit_is_named(change, error, tmp_path):
    state = {k: t for k, t in (vit_state() | change).items() if t is not None}
    model = VitTiny(**SMALL, weights=save(state, tmp_path / "w.pt"))

    with pytest.raises(ConfigError, match=f"model.weights: .*{error}.* leave model.weights out"):
        model.check(SHAPE)
    with pytest.raises(ConfigError, match=error):
        initial_tree(model, SHAPE, CLASSES, seed=0)


def test_weights_for_other_images_are_refused_with_both_shapes(tmp_path):
    model = VitTiny(**SMALL, weights=save(vit_state(), tmp_path / "w.pt"))

    with pytest.raises(ConfigError, match=r"body.pos_embed .*\(1, 17, 12\).*got \(1, 10, 12\)"):
        model.check((12, 12, 2))


def test_a_missing_file_is_refused_by_the_check_and_not_needed_by_actors():
    model = ResNet10(weights="nowhere/w.pth")

    with pytest.raises(ConfigError, match=r"model.weights: no file nowhere/w.pth; copy"):
        model.check(SHAPE)
    assert model.build(SHAPE, CLASSES).head.out_features == CLASSES
    assert layout(model, SHAPE, CLASSES) == layout(ResNet10(), SHAPE, CLASSES)


def test_a_run_with_a_missing_file_is_refused_before_anything_starts(tmp_path):
    model = "model={name: vit_tiny, patch: 4, weights: nowhere.pt}"
    config = load_config("quickstart", [model, f"output={tmp_path}/run"])

    with pytest.raises(ConfigError, match=r"model.weights: no file nowhere.pt"):
        Experiment(config).prepare()
    assert not (tmp_path / "run").exists()


def test_paths_are_relative_to_the_working_folder_and_may_start_at_home(tmp_path, monkeypatch):
    save(vit_state(), tmp_path / "w.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    for path in ("w.pt", "~/w.pt"):
        VitTiny(**SMALL, weights=path).check(SHAPE)


class Harmful:
    """An object whose loading would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickled_object_is_refused_and_never_run(tmp_path):
    path = save({"body.norm.bias": Harmful(str(tmp_path / "ran"))}, tmp_path / "w.pt")

    with pytest.raises(ConfigError, match=r"objects that would run code .* save model.state_dict"):
        VitTiny(**SMALL, weights=path).check(SHAPE)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ([1, 2], "holds a list, not tensors by name"),
        ({"state_dict": {"body.norm.bias": torch.zeros(3)}}, "'state_dict' is a dict, not a tens"),
    ],
)
def test_files_with_something_else_say_what_they_hold(content, error, tmp_path):
    path = save(content, tmp_path / "w.pt")

    with pytest.raises(ConfigError, match=rf"cannot be read as a state_dict .*{error}.*again"):
        VitTiny(**SMALL, weights=path).check(SHAPE)


@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x08" + 7 * b"\0" + b"[1,2,3] "])
@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_files_of_another_format_are_refused(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match=r"model.weights: .*state_dict"):
        VitTiny(**SMALL, weights=str(tmp_path / name)).check(SHAPE)


@pytest.mark.parametrize(("cut", "dtype"), [(5, "F32"), (0, "F8_E4M3"), (0, "F64")])
def test_damaged_or_unknown_safetensors_are_refused(cut, dtype, tmp_path):
    path = tmp_path / "w.safetensors"
    save_safetensors(vit_state(), path, dtype=dtype)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])

    with pytest.raises(ConfigError, match="cannot be read as a state_dict"):
        VitTiny(**SMALL, weights=str(path)).check(SHAPE)


def test_a_cut_torch_file_of_the_old_format_is_refused_wherever_it_ends(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"a": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()

    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"model.weights: .*state_dict"):
            VitTiny(**SMALL, weights=str(path)).check(SHAPE)

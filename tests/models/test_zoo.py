import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from raysim.errors import ConfigError
from raysim.models import networks
from raysim.models.params import initial_tree, seeded
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import (
    MODELS,
    Cnn,
    FourConv,
    LeNet5,
    Logistic,
    Mlp,
    MobileNet,
    NineConv,
    PreActResNet18,
    ResNet10,
    ResNet12,
    ResNet18,
    ResNet34,
    ResNet50,
    SmallCnn,
    VitTiny,
)
from raysim.seeding import stream

MNIST, MNIST_32, CIFAR = (28, 28, 1), (32, 32, 1), (32, 32, 3)
SMALLEST = {
    "logistic": 1,
    "mlp": 1,
    "cnn": 16,
    "small_cnn": 8,
    "lenet5": 20,
    "four_conv": 16,
    "nine_conv": 32,
    "preact_resnet18": 9,
    "resnet10": 9,
    "resnet12": 9,
    "resnet18": 9,
    "resnet34": 9,
    "resnet50": 33,
    "mobilenet": 17,
    "vit_tiny": 16,
}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def smallest_shape(name):
    """The least height, a larger width, two channels."""
    side = SMALLEST[name]
    return side, side + (16 if name == "vit_tiny" else 3), 2


def test_the_registry_holds_these_models():
    assert MODELS.names() == sorted(SMALLEST)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (Logistic(), MNIST, 7_850),
        (Mlp(), MNIST, 159_010),
        (Mlp(hidden=7), MNIST, 784 * 7 + 7 + 7 * 10 + 10),
        (Cnn(), CIFAR, 797_962),
        (LeNet5(), MNIST_32, 61_738),
        (LeNet5(batch_norm=False), MNIST_32, 61_738 - 32),
        # conv 1->16 and 16->32 (no bias), two batch norms, 32 maps of 2x2
        (SmallCnn(), (8, 8, 1), 144 + 32 + 4_608 + 64 + 1_290),
        (FourConv(), CIFAR, 115_658),
        (FourConv(track_running_stats=False), CIFAR, 115_658),
        (NineConv(), CIFAR, 4_434_570),
        (NineConv(test_dropout=True), CIFAR, 4_434_570),
        (ResNet10(), CIFAR, 4_903_242),
        (ResNet12(), CIFAR, 4_977_226),
        (ResNet18(), CIFAR, 11_173_962),
        (ResNet34(), CIFAR, 21_282_122),
    ],
    ids=str,
)
def test_parameter_counts_match_the_sheet(model, shape, expected):
    with torch.device("meta"):
        module = model.build(shape, 10)

    assert count(module) == expected


def test_resnet34_with_100_classes_has_the_count_of_the_sheet():
    with torch.device("meta"):
        assert count(ResNet34().build(CIFAR, 100)) == 21_328_292


@pytest.mark.parametrize(
    ("model", "theirs", "classes"),
    [(ResNet50(), "resnet50", 14), (MobileNet(), "mobilenet_v2", 100)],
    ids=["resnet50", "mobilenet"],
)
def test_parameter_counts_match_torchvisions_own(model, theirs, classes):
    import torchvision

    with torch.device("meta"):
        expected = getattr(torchvision.models, theirs)(num_classes=classes)
        module = model.build((224, 224, 3), classes)

    assert count(module) == count(expected)


@pytest.mark.parametrize(
    ("model", "shape", "width"),
    [
        (FourConv(), CIFAR, 256),
        (NineConv(), CIFAR, 128),
        (PreActResNet18(), CIFAR, 512),
        (ResNet12(), CIFAR, 512),
        (ResNet34(), CIFAR, 512),
        (ResNet50(), (64, 64, 3), 2048),
        (ResNet50(), (224, 224, 3), 2048),
        (MobileNet(), CIFAR, 1280),
        (MobileNet(stem_stride=2), (224, 224, 3), 1280),
        (VitTiny(), (224, 224, 3), 192),
        (VitTiny(patch=4), CIFAR, 192),
    ],
    ids=str,
)
def test_features_have_the_width_of_the_last_layer(model, shape, width):
    height, across, channels = shape
    with torch.device("meta"):
        module = model.build(shape, 10).eval()
        features = module.features(torch.empty(2, channels, height, across))

    assert features.shape == (2, width)


@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_images_give_features_and_logits(name):
    height, width, channels = shape = smallest_shape(name)
    module = MODELS.get(name)().build(shape, 5).train()
    # one sample: batch norm must still have a variance
    images = torch.randn(1, channels, height, width)

    with seeded(0):
        logits = module(images)
    with seeded(0):  # the dropout of mobilenet
        features = module.features(images)

    assert logits.shape == (1, 5)
    assert features.ndim == 2
    assert torch.equal(module.head(features), logits)


@pytest.mark.parametrize("name", SMALLEST)
def test_one_epoch_on_the_smallest_images_moves_the_weights(name):
    height, width, channels = shape = smallest_shape(name)
    model = MODELS.get(name)()
    tree = initial_tree(model, shape, 3, seed=0)
    rng = stream(0, "images")
    images = rng.standard_normal((3, channels, height, width)).astype(np.float32)
    settings = TrainSettings(epochs=1, batch_size=2, lr=0.01)  # the last batch has one sample

    trained, report = train_client(
        model, tree, images, np.array([0, 1, 2]), settings, rng=rng, classes=3
    )

    assert report.steps == 2
    assert np.isfinite(report.loss)
    assert not np.array_equal(trained["trainable"], tree["trainable"])
    assert tree["buffers"].size == 0 or not np.array_equal(trained["buffers"], tree["buffers"])


WITH_SIDE = [name for name, side in SMALLEST.items() if side > 1 and name != "vit_tiny"]


@pytest.mark.parametrize("name", WITH_SIDE)
def test_images_below_the_smallest_are_refused_by_name_and_shape(name):
    side = SMALLEST[name] - 1
    model = MODELS.get(name)()

    for refuse in (model.check, lambda shape: model.build(shape, 10)):
        with pytest.raises(ConfigError, match=rf"model.name {name} .* got {side}x40x3"):
            refuse((side, 40, 3))
    with pytest.raises(ConfigError):
        model.check((40, side, 3))


def test_plain_lenet_takes_images_down_to_16():
    assert LeNet5(batch_norm=False).build((16, 16, 1), 10)(torch.zeros(1, 1, 16, 16)).shape[1] == 10


def test_lenet_on_28_pixels_flattens_to_256():
    linear = LeNet5(batch_norm=False).build(MNIST, 10).body[7]

    assert linear.in_features == 256


def test_residual_network_halves_the_maps_three_times():
    module = ResNet10().build(CIFAR, 10).eval()
    maps = torch.zeros(1, 3, 32, 32)
    sides = []
    for layer in module.body:
        maps = layer(maps)
        if isinstance(layer, networks.BasicBlock):
            sides.append(maps.shape[-1])

    assert sides == [32, 16, 8, 4]
    assert isinstance(module.body[3].shortcut, torch.nn.Identity)


def test_mobilenet_with_torchvisions_own_stem_needs_larger_images():
    model = MobileNet(stem_stride=2)

    model.check((33, 33, 3))
    with pytest.raises(ConfigError, match="at least 33x33"):
        model.build((32, 32, 3), 10)


def test_mobilenet_keeps_the_resolution_in_its_stem():
    with torch.device("meta"):
        stem = MobileNet().build(CIFAR, 10).body.features[0]

        assert stem(torch.empty(1, 3, 32, 32)).shape == (1, 32, 32, 32)


def test_four_conv_without_running_statistics_uses_those_of_the_batch():
    module = FourConv(track_running_stats=False).build(CIFAR, 10).eval()
    images = torch.randn(4, 3, 32, 32)

    assert list(module.buffers()) == []
    assert not torch.allclose(module(images)[:2], module(images[:2]))


@pytest.mark.parametrize("stride", [0, 3])
def test_other_strides_of_the_mobilenet_stem_are_refused(stride):
    with pytest.raises(ConfigError, match=rf"stem_stride must be 1 or 2, got {stride}"):
        MobileNet(stem_stride=stride)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mlp(hidden=0),
        lambda: Cnn(conv_widths=(0, 1)),
        lambda: Cnn(dense_widths=(4,)),
        lambda: SmallCnn(widths=(3, -1)),
    ],
)
def test_impossible_widths_are_refused(make):
    with pytest.raises(ConfigError, match="at least 1"):
        make()


def test_models_are_hashable_values_that_pickle():
    assert len({Cnn(), Cnn(), Cnn(conv_widths=(8, 8)), ResNet10(), ResNet18()}) == 4
    assert pickle.loads(pickle.dumps(Cnn(conv_widths=(8, 8)))) == Cnn(conv_widths=(8, 8))


LAZY = """
import sys
import numpy as np
import raysim.models.evaluation
from raysim.models.params import initial_tree
from raysim.models.training import TrainSettings, train_client
from raysim.models.zoo import MODELS
model = MODELS.get("logistic")()
for name in MODELS.names():
    MODELS.get(name)().check((64, 64, 3))
assert "torch" not in sys.modules
data = np.zeros((2, 1, 4, 4), np.float32), np.zeros(2, np.int64)
for model in (model, MODELS.get("vit_tiny")(patch=2, width=6, depth=1)):
    tree = initial_tree(model, (4, 4, 1), 3, seed=0)
    train_client(model, tree, *data, TrainSettings(), rng=np.random.default_rng(0), classes=3)
assert "torch" in sys.modules
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.process
def test_names_and_checks_load_no_torch_and_training_loads_no_compiler():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
def test_pooling_without_gradients_gives_the_same_numbers(size):
    maps = torch.randn(3, 2, *size, generator=torch.Generator().manual_seed(0))
    maps[0, 0, 0, 0] = torch.nan
    with torch.no_grad():
        found = networks.Halved()(maps)

    assert torch.equal(found.nan_to_num(9.0), networks.Halved()(maps).nan_to_num(9.0))


def test_a_narrower_four_conv_has_the_parameters_of_its_layers():
    net = FourConv(width=16).build((32, 32, 3), 10)

    convolutions = (3 * 9 + 1) * 16 + 3 * (16 * 9 + 1) * 16
    assert sum(p.numel() for p in net.parameters()) == convolutions + 4 * 2 * 16 + (64 + 1) * 10
    with pytest.raises(ConfigError, match="width must be at least 1, got 0"):
        FourConv(width=0)

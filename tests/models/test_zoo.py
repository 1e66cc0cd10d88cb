import pickle
import subprocess
import sys

import pytest
import torch

from raysim.errors import ConfigError
from raysim.models import networks
from raysim.models.zoo import MODELS, Cnn, LeNet5, Logistic, Mlp, ResNet10, ResNet18, SmallCnn

MNIST, MNIST_32, CIFAR = (28, 28, 1), (32, 32, 1), (32, 32, 3)
SMALLEST = {
    "logistic": 1,
    "mlp": 1,
    "cnn": 16,
    "small_cnn": 8,
    "lenet5": 20,
    "resnet10": 9,
    "resnet18": 9,
}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_registry_holds_the_seven_models():
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
        (ResNet10(), CIFAR, 4_903_242),
        (ResNet18(), CIFAR, 11_173_962),
    ],
    ids=str,
)
def test_parameter_counts_match_the_sheet(model, shape, expected):
    with torch.device("meta"):
        module = model.build(shape, 10)

    assert count(module) == expected


@pytest.mark.parametrize(
    ("blocks", "classes", "expected"),
    [
        ((2, 1, 1, 1), 10, 4_977_226),
        ((3, 4, 6, 3), 10, 21_282_122),
        ((3, 4, 6, 3), 100, 21_328_292),
    ],
)
def test_other_residual_networks_of_the_sheet_have_its_counts(blocks, classes, expected):
    with torch.device("meta"):
        module = networks.resnet(CIFAR, classes, blocks=blocks)

    assert count(module) == expected


@pytest.mark.parametrize("name", SMALLEST)
def test_smallest_images_give_features_and_logits(name):
    side = SMALLEST[name]
    module = MODELS.get(name)().build((side, side + 3, 2), 5).train()
    images = torch.randn(1, 2, side, side + 3)  # one sample: batch norm must still have a variance

    logits, features = module(images), module.features(images)

    assert logits.shape == (1, 5)
    assert features.ndim == 2
    assert torch.equal(module.head(features), logits)


@pytest.mark.parametrize("name", [name for name, side in SMALLEST.items() if side > 1])
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
model.check((4, 4, 1))
assert "torch" not in sys.modules
tree = initial_tree(model, (4, 4, 1), 3, seed=0)
data = np.zeros((2, 1, 4, 4), np.float32), np.zeros(2, np.int64)
train_client(model, tree, *data, TrainSettings(), rng=np.random.default_rng(0), classes=3)
assert "torch" in sys.modules
assert "torch._dynamo" not in sys.modules
"""


def test_names_and_checks_load_no_torch_and_training_loads_no_compiler():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr

"""The networks of the noisy-label papers: nine convolutions, and pre-activation ResNet-18."""

from itertools import pairwise

import numpy as np
import torch
from torch import nn

from raysim.models.evaluation import logits
from raysim.models.networks import PreActBlock
from raysim.models.params import initial_tree
from raysim.models.zoo import NineConv, PreActResNet18, ResNet18
from raysim.seeding import stream

CIFAR = (32, 32, 3)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_preact_resnet18_has_the_count_of_its_layer_list():
    # A block has a norm of the maps that come in and one of those between its convolutions, none
    # behind them and none in its projection.
    def block(inputs, outputs):
        norms = 2 * inputs + 2 * outputs
        projection = inputs * outputs if inputs != outputs else 0
        return norms + 9 * inputs * outputs + 9 * outputs * outputs + projection

    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = sum(block(a, b) for a, b in pairwise(widths))
    stem, head = 9 * 3 * 64 + 2 * 64, 512 * 10 + 10
    with torch.device("meta"):
        ours, plain = PreActResNet18().build(CIFAR, 10), ResNet18().build(CIFAR, 10)

    assert (
        count(ours) == stem + blocks + head == 11_171_274
    )  # "11.17 M", raysim/docs/sheets/models.md
    # Where n / 2 channels become n, a plain block has norms of 6 n weights, this one of n + 2 n.
    assert count(plain) - count(ours) == sum(3 * n for n in (128, 256, 512))


def test_a_preact_block_is_its_formula():
    block = PreActBlock(2, 4, stride=2).eval()
    maps = torch.randn(3, 2, 6, 6)
    norm, (first, middle, _, second) = block.before[0], block.residual
    norm.running_mean.fill_(0.3)
    norm.running_var.fill_(2.0)

    active = ((maps - 0.3) / (2.0 + 1e-5) ** 0.5).clamp(min=0)
    inside = (first(active) / (1.0 + 1e-5) ** 0.5).clamp(min=0)
    expected = second(inside) + block.shortcut(active)

    torch.testing.assert_close(block(maps), expected)
    assert middle.running_mean.sum() == 0
    assert block.shortcut.kernel_size == (1, 1)


def test_an_identity_shortcut_starts_behind_the_activation():
    block = PreActBlock(2, 2, stride=1).eval()
    nn.init.zeros_(block.residual[3].weight)  # nothing but the shortcut is left
    maps = torch.randn(1, 2, 4, 4)

    expected = maps.clamp(min=0) / (1 + 1e-5) ** 0.5

    torch.testing.assert_close(block(maps), expected)


def test_nine_convolutions_have_these_maps():
    module = NineConv().build(CIFAR, 10).eval()
    maps, seen = torch.zeros(1, 3, 32, 32), []
    for layer in module.body:
        maps = layer(maps)
        if isinstance(layer, nn.Conv2d):
            seen.append(tuple(maps.shape[1:]))

    assert seen == [
        *[(128, 32, 32)] * 3,
        *[(256, 16, 16)] * 3,
        (512, 6, 6),
        (256, 4, 4),
        (128, 2, 2),
    ]
    assert [layer.p for layer in module.body if isinstance(layer, nn.Dropout2d)] == [0.25, 0.25]


def test_dropout_is_off_when_testing_unless_asked_for():
    images = stream(0, "images").standard_normal((4, 3, 32, 32)).astype(np.float32)
    tree = initial_tree(NineConv(), CIFAR, 10, seed=0)

    def found(**setting):
        return logits(NineConv(**setting), tree, images, classes=10)

    module = NineConv().build(CIFAR, 10).eval()
    again = NineConv(test_dropout=True).build(CIFAR, 10).eval()
    batch = torch.tensor(images)

    assert torch.equal(module(batch), module(batch))
    assert not torch.equal(again(batch), again(batch))
    # An evaluation is seeded, so even active dropout gives the same answer twice.
    np.testing.assert_array_equal(found(test_dropout=True), found(test_dropout=True))
    assert not np.array_equal(found(), found(test_dropout=True))

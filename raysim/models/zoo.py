"""Networks by name. A model is its settings; torch is loaded when ``build`` makes the module.

Sizes follow the sheet models.md. Every network ends in a linear ``head`` over all classes of the
dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, ClassVar, Protocol

from raysim.errors import ConfigError
from raysim.settings import Registry, check, settings

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network


class Model(Protocol):
    """Frozen, hashable settings of a network."""

    def __hash__(self) -> int: ...

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images (height, width, channels) and weights the network cannot take."""
        ...

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network for float32 images (N, channels, height, width), weights random."""
        ...


MODELS: Registry[Model] = Registry("model", key="name", home="raysim.models.zoo")


@MODELS.register("logistic")
@settings
class Logistic:
    """Logistic regression on pixels (RCC-PFL, MNIST)."""

    def check(self, image_shape: ImageShape) -> None:
        """Accept every image."""
        _refuse_small("logistic", image_shape, 1)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.logistic(image_shape, classes)


@MODELS.register("mlp")
@settings
class Mlp:
    """Perceptron with one hidden layer (RCC-PFL, Fashion-MNIST)."""

    hidden: int = 200  # ours: the paper gives no width, models.md section 2

    def __post_init__(self) -> None:
        check(self.hidden >= 1, "hidden", "must be at least 1", got=self.hidden, do="try 200")

    def check(self, image_shape: ImageShape) -> None:
        """Accept every image."""
        _refuse_small("mlp", image_shape, 1)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.perceptron(image_shape, classes, hidden=self.hidden)


@MODELS.register("cnn")
@settings
class Cnn:
    """Two 5x5 convolutions and three dense layers (stand-in for RCC-PFL's CIFAR-10 net)."""

    conv_widths: tuple[int, int] = (64, 64)  # models.md section 3; the paper's list is not public
    dense_widths: tuple[int, int] = (384, 192)

    def __post_init__(self) -> None:
        _check_widths("conv_widths", self.conv_widths)
        _check_widths("dense_widths", self.dense_widths)

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images below 16x16: two 5x5 convolutions and poolings would leave nothing."""
        _refuse_small("cnn", image_shape, 16)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        widths = {"conv": self.conv_widths, "dense": self.dense_widths}
        return networks.cnn(image_shape, classes, **widths)


@MODELS.register("small_cnn")
@settings
class SmallCnn:
    """Two 3x3 convolutions with batch norm and a linear head (ours, for small images)."""

    widths: tuple[int, int] = (16, 32)

    def __post_init__(self) -> None:
        _check_widths("widths", self.widths)

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images below 8x8."""
        _refuse_small("small_cnn", image_shape, 8)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.small_cnn(image_shape, classes, widths=self.widths)


@MODELS.register("lenet5")
@settings
class LeNet5:
    """LeNet-5 (FedFixer, MNIST resized to 32x32)."""

    batch_norm: bool = True
    """FedFixer's batch norm after the second pooling; false gives the plain net of FedZoo-Bench."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps are empty, or one pixel under batch norm."""
        # Batch norm on 1x1 maps has no variance for a client with a single sample.
        _refuse_small("lenet5", image_shape, 20 if self.batch_norm else 16)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.lenet5(image_shape, classes, batch_norm=self.batch_norm)


@MODELS.register("four_conv")
@settings
class FourConv:
    """Four 3x3 convolutions with batch norm (FedRN, CIFAR-10)."""

    track_running_stats: bool = True
    """FedRN's code uses false: batch norm then takes the statistics of the batch when testing too,
    and predictions depend on which images share a batch."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images below 16x16: four poolings would leave nothing."""
        _refuse_small("four_conv", image_shape, 16)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.four_conv(
            image_shape, classes, track_running_stats=self.track_running_stats
        )


@settings
class CifarResNet:
    """A residual network with the CIFAR stem (models.md section 4)."""

    blocks: ClassVar[tuple[int, int, int, int]]
    choice_name: ClassVar[str]

    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from; null: random weights."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel, and weights that do not fit."""
        _refuse_small(self.choice_name, image_shape, RESNET_SIDE)
        _refuse_weights(self, self.weights, image_shape)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        _refuse_small(self.choice_name, image_shape, RESNET_SIDE)
        return networks.resnet(image_shape, classes, blocks=self.blocks)


@MODELS.register("resnet10")
@settings
class ResNet10(CifarResNet):
    """ResNet-10 with the CIFAR stem (FB-NLL, SVHN)."""

    blocks: ClassVar[tuple[int, int, int, int]] = (1, 1, 1, 1)


@MODELS.register("resnet12")
@settings
class ResNet12(CifarResNet):
    """ResNet-12 with the CIFAR stem (RHFL; not the few-shot network of that name)."""

    blocks: ClassVar[tuple[int, int, int, int]] = (2, 1, 1, 1)


@MODELS.register("resnet18")
@settings
class ResNet18(CifarResNet):
    """ResNet-18 with the CIFAR stem (FB-NLL, CIFAR-10)."""

    blocks: ClassVar[tuple[int, int, int, int]] = (2, 2, 2, 2)


@MODELS.register("resnet34")
@settings
class ResNet34(CifarResNet):
    """ResNet-34 with the CIFAR stem (FedCorr, CIFAR-100)."""

    blocks: ClassVar[tuple[int, int, int, int]] = (3, 4, 6, 3)


@MODELS.register("resnet50")
@settings
class ResNet50:
    """torchvision's ResNet-50 with the ImageNet stem (Clothing1M, 224x224)."""

    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, such as torchvision's for
    ImageNet, whose head is left out; null: random weights."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel, and weights that do not fit."""
        _refuse_small("resnet50", image_shape, RESNET50_SIDE)
        _refuse_weights(self, self.weights, image_shape)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        _refuse_small("resnet50", image_shape, RESNET50_SIDE)
        return networks.resnet50(image_shape, classes)


@MODELS.register("mobilenet")
@settings
class MobileNet:
    """torchvision's MobileNetV2 with a stride-1 stem (stand-in for FedRN's MobileNet).

    FedRN names a MobileNet for CIFAR-100 and WebVision, but the network is not in its public code:
    those tables cannot be reproduced exactly (models.md section 7).
    """

    stem_stride: int = 1
    """1 for 32x32 images; 2, torchvision's own, for large ones."""
    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, such as torchvision's for
    ImageNet, whose head is left out; null: random weights."""

    def __post_init__(self) -> None:
        known = self.stem_stride in (1, 2)
        do = "1 is for 32x32 images"
        check(known, "stem_stride", "must be 1 or 2", got=self.stem_stride, do=do)

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel, and weights that do not fit."""
        self._refuse_size(image_shape)
        _refuse_weights(self, self.weights, image_shape)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self._refuse_size(image_shape)
        return networks.mobilenet(image_shape, classes, stem_stride=self.stem_stride)

    def _refuse_size(self, image_shape: ImageShape) -> None:
        # Four halvings after the stem must leave 2x2 maps.
        _refuse_small("mobilenet", image_shape, 16 * self.stem_stride + 1)


@MODELS.register("vit_tiny")
@settings
class VitTiny:
    """Vision transformer ViT-Tiny/16 (ClipFL, images resized to 224x224).

    With 32x32 images use patch 4: a substitute for ClipFL's network, not the same.
    """

    patch: int = 16
    """Side of a patch in pixels; it must divide the image's sides."""
    width: int = 192
    depth: int = 12
    heads: int = 3
    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, such as timm's
    vit_tiny_patch16_224 for 224x224 images; null: random weights."""

    def __post_init__(self) -> None:
        for name in ("patch", "width", "depth", "heads"):
            got = getattr(self, name)
            check(got >= 1, name, "must be at least 1", got=got, do="leave it out for ViT-Tiny/16")
        ok = self.width % self.heads == 0
        do = f"use a multiple of heads, {self.heads}"
        check(ok, "width", "must be divisible by the number of heads", got=self.width, do=do)

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images that patches do not cover, and weights that do not fit."""
        _refuse_uncovered(image_shape, self.patch)
        _refuse_weights(self, self.weights, image_shape)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models.vision_transformer import vision_transformer

        _refuse_uncovered(image_shape, self.patch)
        sizes = {"width": self.width, "depth": self.depth, "heads": self.heads}
        return vision_transformer(image_shape, classes, patch=self.patch, **sizes)


RESNET_SIDE = 9
"""Smallest side that leaves 2x2 maps after three halvings; batch norm of one sample needs them."""
RESNET50_SIDE = 33
"""The same for the five halvings of the ImageNet stem and its stages."""


def dense_widths(model: Model, image_shape: Sequence[int], classes: int) -> tuple[int, ...] | None:
    """Return the layer widths of a model made of dense layers and ReLU alone, else None."""
    if isinstance(model, Logistic):
        return (prod(image_shape), classes)
    if isinstance(model, Mlp):
        return (prod(image_shape), model.hidden, classes)
    return None


def _refuse_small(name: str, image_shape: ImageShape, side: int) -> None:
    height, width, _ = image_shape
    if min(height, width) < side:
        found = "x".join(map(str, image_shape))
        raise ConfigError(
            f"model.name {name} needs images of at least {side}x{side} pixels, got {found} "
            "(height x width x channels); choose mlp or logistic, or a dataset with larger images"
        )


def _refuse_uncovered(image_shape: ImageShape, patch: int) -> None:
    height, width, _ = image_shape
    if height % patch or width % patch:
        common = gcd(height, width)
        fitting = [str(p) for p in range(1, common + 1) if common % p == 0]
        found = "x".join(map(str, image_shape))
        raise ConfigError(
            f"model.patch must divide the sides of the images, got {patch} for {found} (height x "
            f"width x channels); set it to one of {', '.join(fitting)}"
        )


def _refuse_weights(model: Model, weights: str | None, image_shape: ImageShape) -> None:
    """Read the file, if there is one, so that a run fails before anything starts."""
    if weights is None:
        return
    from raysim.models.params import layout
    from raysim.models.weights_file import stored_arrays

    # The number of classes only decides whether the head is taken, so any will do.
    stored_arrays(weights, layout(model, image_shape, 1))


def _check_widths(field: str, widths: tuple[int, ...]) -> None:
    rule = "must be two numbers, each at least 1"
    ok = len(widths) == 2 and min(widths) >= 1
    check(ok, field, rule, got=widths, do="count the channels or neurons of the two layers")

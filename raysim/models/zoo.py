"""Networks by name. A model is its settings; torch is loaded when ``build`` makes the module.

Sizes follow the sheet models.md. Every network ends in a linear ``head`` over all classes of the
dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Protocol

from raysim.errors import ConfigError
from raysim.settings import Registry, check, settings

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network


class Model(Protocol):
    """Frozen, hashable settings of a network."""

    def __hash__(self) -> int: ...

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images (height, width, channels) that the network cannot take."""
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


@MODELS.register("resnet10")
@settings
class ResNet10:
    """ResNet-10 with the CIFAR stem (FB-NLL, SVHN)."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel."""
        _refuse_small("resnet10", image_shape, RESNET_SIDE)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.resnet(image_shape, classes, blocks=(1, 1, 1, 1))


@MODELS.register("resnet18")
@settings
class ResNet18:
    """ResNet-18 with the CIFAR stem (FB-NLL, CIFAR-10)."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel."""
        _refuse_small("resnet18", image_shape, RESNET_SIDE)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check(image_shape)
        return networks.resnet(image_shape, classes, blocks=(2, 2, 2, 2))


RESNET_SIDE = 9
"""Smallest side that leaves 2x2 maps after three halvings; batch norm of one sample needs them."""


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


def _check_widths(field: str, widths: tuple[int, ...]) -> None:
    rule = "must be two numbers, each at least 1"
    ok = len(widths) == 2 and min(widths) >= 1
    check(ok, field, rule, got=widths, do="count the channels or neurons of the two layers")

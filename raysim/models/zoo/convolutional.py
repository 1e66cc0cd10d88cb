"""Networks of convolutions without shortcuts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from raysim.models.zoo.model import MODELS, ZooModel, check_widths
from raysim.settings import In, settings

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.networks import ImageShape


@MODELS.register("cnn")
@settings
class Cnn(ZooModel):
    """Two 5x5 convolutions and three dense layers (stand-in for RCC-PFL's CIFAR-10 net)."""

    smallest: ClassVar[int] = 16  # two convolutions and poolings leave 1x1 maps

    # The CIFAR net of the FedAvg literature; RCC-PFL's list of layers is not public.
    conv_widths: tuple[int, int] = (64, 64)
    dense_widths: tuple[int, int] = (384, 192)

    def __post_init__(self) -> None:
        check_widths("conv_widths", self.conv_widths)
        check_widths("dense_widths", self.dense_widths)

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from raysim.models.networks import conv5_net

        return conv5_net(image_shape, self.conv_widths, self.dense_widths), self.dense_widths[1]


@MODELS.register("small_cnn")
@settings
class SmallCnn(ZooModel):
    """Two 3x3 convolutions with batch norm and a linear head (ours, for small images)."""

    smallest: ClassVar[int] = 8

    widths: tuple[int, int] = (16, 32)

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn

        from raysim.models.networks import Halved, conv3_norm

        height, width, inputs = image_shape
        blocks: list[nn.Module] = []
        for outputs in self.widths:
            blocks += [*conv3_norm(inputs, outputs), nn.ReLU(), Halved()]
            inputs = outputs
        return nn.Sequential(*blocks, nn.Flatten()), inputs * (height // 4) * (width // 4)


@MODELS.register("lenet5")
@settings
class LeNet5(ZooModel):
    """LeNet-5 (FedFixer, MNIST resized to 32x32)."""

    batch_norm: bool = True
    """FedFixer's batch norm after the second pooling; false gives the plain net of FedZoo-Bench."""

    def smallest_side(self) -> int:
        # Batch norm on 1x1 maps has no variance for a client with a single sample.
        return 20 if self.batch_norm else 16

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from raysim.models.networks import conv5_net

        return conv5_net(image_shape, (6, 16), (120, 84), norm=self.batch_norm), 84


@MODELS.register("four_conv")
@settings
class FourConv(ZooModel):
    """Four 3x3 convolutions with batch norm (FedRN, CIFAR-10)."""

    smallest: ClassVar[int] = 16  # four poolings leave 1x1 maps

    width: Annotated[int, In("[1, inf)", "try 64")] = 64
    """Maps of every convolution."""
    track_running_stats: bool = True
    """FedRN's code uses false: batch norm then takes the statistics of the batch when testing too,
    and predictions depend on which images share a batch."""

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn

        from raysim.models.networks import Halved

        height, across, channels = image_shape
        blocks: list[nn.Module] = []
        for inputs in (channels, self.width, self.width, self.width):
            blocks += [
                nn.Conv2d(inputs, self.width, 3, padding=1),  # with the bias of the paper's code
                nn.BatchNorm2d(self.width, track_running_stats=self.track_running_stats),
                nn.ReLU(),
                Halved(),
            ]
        return nn.Sequential(*blocks, nn.Flatten()), self.width * (height // 16) * (across // 16)


@MODELS.register("nine_conv")
@settings
class NineConv(ZooModel):
    """Nine 3x3 convolutions with batch norm and dropout (Co-teaching, RFL, FedLSR, CORES2)."""

    smallest: ClassVar[int] = 32  # below it the last maps have one pixel, under batch norm

    test_dropout: bool = False
    """True keeps dropout on when testing, as the released codes do by mistake: predictions are then
    random, the same ones for the same images in the same order."""

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn

        from raysim.models.networks import AlwaysDropout2d, Halved

        def convolution(inputs: int, outputs: int, padding: int) -> list[nn.Module]:
            conv = nn.Conv2d(inputs, outputs, 3, padding=padding)  # biased, as the released codes
            return [conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.01)]

        dropout = AlwaysDropout2d if self.test_dropout else nn.Dropout2d
        blocks: list[nn.Module] = []
        inputs = image_shape[2]
        for outputs in (128, 256):
            for _ in range(3):
                blocks += convolution(inputs, outputs, 1)
                inputs = outputs
            blocks += [Halved(), dropout(0.25)]
        for outputs in (512, 256, 128):
            blocks += convolution(inputs, outputs, 0)
            inputs = outputs
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 128

"""Plain convolutional networks (models.md sections 3, 6, 7 and 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.models.zoo.model import MODELS, FromFile, check_widths, refuse_small
from raysim.settings import check, settings

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network


@MODELS.register("cnn")
@settings
class Cnn(FromFile):
    """Two 5x5 convolutions and three dense layers (stand-in for RCC-PFL's CIFAR-10 net)."""

    conv_widths: tuple[int, int] = (64, 64)  # models.md section 3; the paper's list is not public
    dense_widths: tuple[int, int] = (384, 192)

    def __post_init__(self) -> None:
        check_widths("conv_widths", self.conv_widths)
        check_widths("dense_widths", self.dense_widths)

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images below 16x16: two 5x5 convolutions and poolings would leave nothing."""
        refuse_small("cnn", image_shape, 16)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        widths = {"conv": self.conv_widths, "dense": self.dense_widths}
        return networks.cnn(image_shape, classes, **widths)


@MODELS.register("small_cnn")
@settings
class SmallCnn(FromFile):
    """Two 3x3 convolutions with batch norm and a linear head (ours, for small images)."""

    widths: tuple[int, int] = (16, 32)

    def __post_init__(self) -> None:
        check_widths("widths", self.widths)

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images below 8x8."""
        refuse_small("small_cnn", image_shape, 8)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.small_cnn(image_shape, classes, widths=self.widths)


@MODELS.register("lenet5")
@settings
class LeNet5(FromFile):
    """LeNet-5 (FedFixer, MNIST resized to 32x32)."""

    batch_norm: bool = True
    """FedFixer's batch norm after the second pooling; false gives the plain net of FedZoo-Bench."""

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps are empty, or one pixel under batch norm."""
        # Batch norm on 1x1 maps has no variance for a client with a single sample.
        refuse_small("lenet5", image_shape, 20 if self.batch_norm else 16)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.lenet5(image_shape, classes, batch_norm=self.batch_norm)


@MODELS.register("four_conv")
@settings
class FourConv(FromFile):
    """Four 3x3 convolutions with batch norm (FedRN, CIFAR-10)."""

    width: int = 64
    """Maps of every convolution."""
    track_running_stats: bool = True
    """FedRN's code uses false: batch norm then takes the statistics of the batch when testing too,
    and predictions depend on which images share a batch."""

    def __post_init__(self) -> None:
        check(self.width >= 1, "width", "must be at least 1", got=self.width, do="try 64")

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images below 16x16: four poolings would leave nothing."""
        refuse_small("four_conv", image_shape, 16)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.four_conv(
            image_shape,
            classes,
            width=self.width,
            track_running_stats=self.track_running_stats,
        )


@MODELS.register("nine_conv")
@settings
class NineConv(FromFile):
    """Nine 3x3 convolutions with batch norm and dropout (Co-teaching, RFL, FedLSR, CORES2)."""

    test_dropout: bool = False
    """True keeps dropout on when testing, as the released codes do by mistake: predictions are then
    random, the same ones for the same images in the same order."""

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images below 32x32: the last maps would have one pixel under batch norm."""
        refuse_small("nine_conv", image_shape, 32)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.nine_conv(image_shape, classes, test_dropout=self.test_dropout)

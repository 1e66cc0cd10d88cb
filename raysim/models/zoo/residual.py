"""Residual networks (models.md sections 4, 5 and the table)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysim.models.zoo.model import MODELS, FromFile, refuse_small
from raysim.settings import settings

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network

RESNET_SIDE = 9
"""Smallest side that leaves 2x2 maps after three halvings; batch norm of one sample needs them."""
RESNET50_SIDE = 33
"""The same for the five halvings of the ImageNet stem and its stages."""


@settings
class CifarResNet(FromFile):
    """A residual network with the CIFAR stem (models.md section 4)."""

    blocks: ClassVar[tuple[int, int, int, int]]
    choice_name: ClassVar[str]

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel."""
        refuse_small(self.choice_name, image_shape, RESNET_SIDE)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
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


@MODELS.register("preact_resnet18")
@settings
class PreActResNet18(FromFile):
    """ResNet-18 with batch norm and ReLU before the convolutions (DivideMix)."""

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel."""
        refuse_small("preact_resnet18", image_shape, RESNET_SIDE)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.resnet(
            image_shape, classes, blocks=(2, 2, 2, 2), block=networks.PreActBlock
        )


@MODELS.register("resnet50")
@settings
class ResNet50(FromFile):
    """torchvision's ResNet-50 with the ImageNet stem (Clothing1M, 224x224)."""

    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, such as torchvision's for
    ImageNet, whose head is left out; null: random weights."""

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel."""
        refuse_small("resnet50", image_shape, RESNET50_SIDE)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.resnet50(image_shape, classes)

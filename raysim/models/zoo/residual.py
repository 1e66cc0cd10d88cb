"""Networks with shortcuts: residual ones, and MobileNet's inverted residuals."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from raysim.models.zoo.model import MODELS, ZooModel
from raysim.settings import check, settings

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.networks import ImageShape


@settings
class CifarResNet(ZooModel):
    """A residual network with the CIFAR stem."""

    # Three halvings leave 2x2 maps; batch norm of one sample needs them.
    smallest: ClassVar[int] = 9
    blocks: ClassVar[tuple[int, int, int, int]]
    """Blocks of each stage."""

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from raysim.models.networks import BasicBlock, residual_stages

        return residual_stages(image_shape[2], self.blocks, BasicBlock), 512


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
class PreActResNet18(CifarResNet):
    """ResNet-18 with batch norm and ReLU before the convolutions (DivideMix)."""

    blocks: ClassVar[tuple[int, int, int, int]] = (2, 2, 2, 2)

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from raysim.models.networks import PreActBlock, residual_stages

        return residual_stages(image_shape[2], self.blocks, PreActBlock), 512


@MODELS.register("resnet50")
@settings
class ResNet50(ZooModel):
    """torchvision's ResNet-50 with the ImageNet stem (Clothing1M, 224x224)."""

    smallest: ClassVar[int] = 33  # five halvings, in the stem and the stages, leave 2x2 maps

    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, such as torchvision's for
    ImageNet, whose head is left out; null: random weights."""

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn
        from torchvision.models import resnet50

        from raysim.models.networks import torchvision_stem

        body = resnet50(weights=None)
        body.conv1 = torchvision_stem(image_shape[2], 64, kernel=7, stride=2)
        body.fc = nn.Identity()
        return body, 2048


@MODELS.register("mobilenet")
@settings
class MobileNet(ZooModel):
    """torchvision's MobileNetV2 with a stride-1 stem (stand-in for FedRN's MobileNet).

    FedRN names a MobileNet for CIFAR-100 and WebVision, but the network is not in its public code:
    those tables cannot be reproduced exactly.
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

    def smallest_side(self) -> int:
        return 16 * self.stem_stride + 1  # four halvings after the stem must leave 2x2 maps

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn
        from torchvision.models import mobilenet_v2

        from raysim.models.networks import torchvision_stem

        body = mobilenet_v2(weights=None)
        stem = torchvision_stem(image_shape[2], 32, kernel=3, stride=self.stem_stride)
        body.features[0][0] = stem
        body.classifier[1] = nn.Identity()
        return body, 1280

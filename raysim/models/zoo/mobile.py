"""A network of depthwise convolutions (models.md section 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.models.zoo.model import MODELS, FromFile, refuse_small
from raysim.settings import check, settings

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network


@MODELS.register("mobilenet")
@settings
class MobileNet(FromFile):
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

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images whose last maps have one pixel."""
        # Four halvings after the stem must leave 2x2 maps.
        refuse_small("mobilenet", image_shape, 16 * self.stem_stride + 1)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.mobilenet(image_shape, classes, stem_stride=self.stem_stride)

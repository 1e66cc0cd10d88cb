"""The vision transformer."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Annotated

from raysim.errors import ConfigError
from raysim.models.zoo.model import MODELS, ZooModel
from raysim.settings import In, check, settings

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.networks import ImageShape, Network


@MODELS.register("vit_tiny")
@settings
class VitTiny(ZooModel):
    """Vision transformer ViT-Tiny/16 (ClipFL, images resized to 224x224).

    With 32x32 images use patch 4: a substitute for ClipFL's network, not the same.
    """

    patch: Annotated[int, In("[1, inf)", "leave it out for ViT-Tiny/16")] = 16
    """Side of a patch in pixels; it must divide the image's sides."""
    width: Annotated[int, In("[1, inf)", "leave it out for ViT-Tiny/16")] = 192
    depth: Annotated[int, In("[1, inf)", "leave it out for ViT-Tiny/16")] = 12
    heads: Annotated[int, In("[1, inf)", "leave it out for ViT-Tiny/16")] = 3
    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from, such as timm's
    vit_tiny_patch16_224 for 224x224 images; null: random weights."""

    def __post_init__(self) -> None:
        ok = self.width % self.heads == 0
        do = f"use a multiple of heads, {self.heads}"
        check(ok, "width", "must be divisible by the number of heads", got=self.width, do=do)

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images that patches do not cover."""
        height, width, _ = image_shape
        if height % self.patch or width % self.patch:
            common = gcd(height, width)
            fitting = [str(p) for p in range(1, common + 1) if common % p == 0]
            found = "x".join(map(str, image_shape))
            raise ConfigError(
                f"model.patch must divide the sides of the images, got {self.patch} for {found} "
                f"(height x width x channels); set it to one of {', '.join(fitting)}"
            )

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from raysim.models.networks import VisionTransformer

        sizes = {"patch": self.patch, "width": self.width, "depth": self.depth}
        return VisionTransformer(image_shape, **sizes, heads=self.heads), self.width

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network, its head drawn like the other layers."""
        from raysim.models.networks import initialise_linear

        return ZooModel.build(self, image_shape, classes).apply(initialise_linear)

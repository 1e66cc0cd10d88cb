"""What a model is: its settings and its layers. torch is loaded when ``build`` makes the network.

Every network ends in a linear ``head`` over all classes of the dataset. Sizes, and where they come
from: raysim/docs/sheets/models.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from raysim.errors import ConfigError
from raysim.settings import Registry, check, settings

if TYPE_CHECKING:
    from torch import nn

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


@settings
class ZooModel(ABC):
    """A network of this package: a subclass holds its settings and writes ``layers``."""

    choice_name: ClassVar[str]
    smallest: ClassVar[int] = 1
    """Smallest side of an image, in pixels, that the layers leave something of."""

    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from; null: random weights."""

    @abstractmethod
    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        """Return new layers that turn images into vectors, and the length of these."""

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network: the layers and a head."""
        from raysim.models.networks import Network

        self.check_images(image_shape)
        body, width = self.layers(image_shape)
        return Network(body, width, classes)

    def check(self, image_shape: ImageShape) -> None:
        """Refuse what does not fit before anything starts; stored weights are read for it."""
        self.check_images(image_shape)
        if self.weights is not None:
            from raysim.models.params import layout
            from raysim.models.weights_file import stored_arrays

            # The number of classes only decides whether the head is taken, so any will do.
            stored_arrays(self.weights, layout(self, image_shape, 1))

    def smallest_side(self) -> int:
        """Return ``smallest``, or what it is with these settings."""
        return self.smallest

    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images with a side below the smallest."""
        height, width, _ = image_shape
        side = self.smallest_side()
        if min(height, width) < side:
            found = "x".join(map(str, image_shape))
            raise ConfigError(
                f"model.name {self.choice_name} needs images of at least {side}x{side} pixels, got "
                f"{found} (height x width x channels); choose mlp or logistic, or a dataset with "
                "larger images"
            )


def check_widths(field: str, widths: tuple[int, ...]) -> None:
    """Refuse anything but two positive widths."""
    rule = "must be two numbers, each at least 1"
    ok = len(widths) == 2 and min(widths) >= 1
    check(ok, field, rule, got=widths, do="count the channels or neurons of the two layers")

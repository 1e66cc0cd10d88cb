"""What a model is: its settings. torch is loaded when ``build`` makes the module.

Sizes follow the sheet models.md. Every network ends in a linear ``head`` over all classes of the
dataset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

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


@settings
class FromFile(ABC):
    """A network that may start from stored weights."""

    weights: str | None = None
    """File with a state_dict (.pt, .pth, .safetensors) to start from; null: random weights."""

    def check(self, image_shape: ImageShape) -> None:
        """Refuse images the network cannot take, and weights that do not fit."""
        self.check_images(image_shape)
        refuse_weights(self, self.weights, image_shape)

    @abstractmethod
    def check_images(self, image_shape: ImageShape) -> None:
        """Refuse images the network cannot take."""

    @abstractmethod
    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""


MODELS: Registry[Model] = Registry("model", key="name", home="raysim.models.zoo")


def refuse_small(name: str, image_shape: ImageShape, side: int) -> None:
    """Refuse images with a side below ``side`` pixels."""
    height, width, _ = image_shape
    if min(height, width) < side:
        found = "x".join(map(str, image_shape))
        raise ConfigError(
            f"model.name {name} needs images of at least {side}x{side} pixels, got {found} "
            "(height x width x channels); choose mlp or logistic, or a dataset with larger images"
        )


def refuse_weights(model: Model, weights: str | None, image_shape: ImageShape) -> None:
    """Read the file, if there is one, so that a run fails before anything starts."""
    if weights is None:
        return
    from raysim.models.params import layout
    from raysim.models.weights_file import stored_arrays

    # The number of classes only decides whether the head is taken, so any will do.
    stored_arrays(weights, layout(model, image_shape, 1))


def check_widths(field: str, widths: tuple[int, ...]) -> None:
    """Refuse anything but two positive widths."""
    rule = "must be two numbers, each at least 1"
    ok = len(widths) == 2 and min(widths) >= 1
    check(ok, field, rule, got=widths, do="count the channels or neurons of the two layers")

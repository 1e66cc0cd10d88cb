"""Networks of dense layers alone (models.md sections 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from raysim.models.zoo.model import MODELS, FromFile, Model, refuse_small
from raysim.settings import check, settings

if TYPE_CHECKING:
    from raysim.models.networks import ImageShape, Network


@MODELS.register("logistic")
@settings
class Logistic(FromFile):
    """Logistic regression on pixels (RCC-PFL, MNIST)."""

    def check_images(self, image_shape: ImageShape) -> None:
        """Accept every image."""
        refuse_small("logistic", image_shape, 1)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.logistic(image_shape, classes)


@MODELS.register("mlp")
@settings
class Mlp(FromFile):
    """Perceptron with one hidden layer (RCC-PFL, Fashion-MNIST)."""

    hidden: int = 200  # ours: the paper gives no width, models.md section 2

    def __post_init__(self) -> None:
        check(self.hidden >= 1, "hidden", "must be at least 1", got=self.hidden, do="try 200")

    def check_images(self, image_shape: ImageShape) -> None:
        """Accept every image."""
        refuse_small("mlp", image_shape, 1)

    def build(self, image_shape: ImageShape, classes: int) -> Network:
        """Return a new network."""
        from raysim.models import networks

        self.check_images(image_shape)
        return networks.perceptron(image_shape, classes, hidden=self.hidden)


def dense_widths(model: Model, image_shape: Sequence[int], classes: int) -> tuple[int, ...] | None:
    """Return the layer widths of a model made of dense layers and ReLU alone, else None."""
    if isinstance(model, Logistic):
        return (prod(image_shape), classes)
    if isinstance(model, Mlp):
        return (prod(image_shape), model.hidden, classes)
    return None

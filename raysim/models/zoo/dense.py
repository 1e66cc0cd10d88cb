"""Networks of dense layers alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Annotated

from raysim.models.zoo.model import MODELS, Model, ZooModel
from raysim.settings import In, settings

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.networks import ImageShape


@MODELS.register("logistic")
@settings
class Logistic(ZooModel):
    """Logistic regression on pixels (RCC-PFL, MNIST)."""

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn

        return nn.Flatten(), prod(image_shape)


@MODELS.register("mlp")
@settings
class Mlp(ZooModel):
    """Perceptron with one hidden layer (RCC-PFL, Fashion-MNIST)."""

    hidden: Annotated[int, In("[1, inf)", "try 200")] = 200  # ours: the paper gives no width

    def layers(self, image_shape: ImageShape) -> tuple[nn.Module, int]:
        from torch import nn

        hidden = nn.Linear(prod(image_shape), self.hidden)
        return nn.Sequential(nn.Flatten(), hidden, nn.ReLU()), self.hidden


def dense_widths(model: Model, image_shape: Sequence[int], classes: int) -> tuple[int, ...] | None:
    """Return the layer widths of a model made of dense layers and ReLU alone, else None."""
    if isinstance(model, Logistic):
        return (prod(image_shape), classes)
    if isinstance(model, Mlp):
        return (prod(image_shape), model.hidden, classes)
    return None

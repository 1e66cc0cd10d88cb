"""Which networks have hand-derived gradients, as lists of layers; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from raysim.models.zoo import LeNet5, Model, dense_widths


@dataclass(frozen=True)
class Dense:
    """Weights (outputs, inputs) and a bias; ReLU follows unless it is the last layer."""

    inputs: int
    outputs: int

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return (self.inputs + 1) * self.outputs


@dataclass(frozen=True)
class Conv:
    """Square kernels without padding, ReLU, 2x2 max pooling, on maps of a fixed size."""

    channels: int
    filters: int
    kernel: int
    height: int
    width: int

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return (self.channels * self.kernel**2 + 1) * self.filters

    @property
    def inputs(self) -> int:
        """Numbers that enter."""
        return self.channels * self.height * self.width

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width after pooling."""
        return (self.height - self.kernel + 1) // 2, (self.width - self.kernel + 1) // 2


Form = tuple[Dense | Conv, ...]


def closed_form(model: Model, image_shape: Sequence[int], classes: int) -> Form | None:
    """Return the layers of a model whose gradients are written by hand, else None.

    ``image_shape`` is (height, width, channels). Wide convolutions (``cnn``) are left to torch:
    there the products dominate and its convolutions are as fast.
    """
    widths = dense_widths(model, image_shape, classes)
    if widths is not None:
        return tuple(Dense(a, b) for a, b in pairwise(widths))
    if isinstance(model, LeNet5) and not model.batch_norm:
        height, width, channels = image_shape
        first = Conv(channels, 6, 5, height, width)
        second = Conv(6, 16, 5, *first.out_size)
        flat = 16 * second.out_size[0] * second.out_size[1]
        return (first, second, Dense(flat, 120), Dense(120, 84), Dense(84, classes))
    return None


def is_dense(form: Form) -> bool:
    """Whether clients can be stacked: only dense layers."""
    return all(isinstance(layer, Dense) for layer in form)


def num_classes(form: Form) -> int:
    """Numbers that come out."""
    last = form[-1]
    assert isinstance(last, Dense)
    return last.outputs

"""Networks by name; a model is its settings and its layers."""

from raysim.models.zoo.convolutional import Cnn, FourConv, LeNet5, NineConv, SmallCnn
from raysim.models.zoo.dense import Logistic, Mlp, dense_widths
from raysim.models.zoo.model import MODELS, Model
from raysim.models.zoo.residual import (
    MobileNet,
    PreActResNet18,
    ResNet10,
    ResNet12,
    ResNet18,
    ResNet34,
    ResNet50,
)
from raysim.models.zoo.transformer import VitTiny

# fmt: off
__all__ = [
    "MODELS", "Cnn", "FourConv", "LeNet5", "Logistic", "Mlp", "MobileNet", "Model", "NineConv",
    "PreActResNet18", "ResNet10", "ResNet12", "ResNet18", "ResNet34", "ResNet50", "SmallCnn",
    "VitTiny", "dense_widths",
]
# fmt: on

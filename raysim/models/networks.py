"""The networks themselves. This module imports torch: import it inside functions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

ImageShape = tuple[int, int, int]  # height, width, channels


class Network(nn.Module):
    """A body that turns images into vectors, and a linear head that turns these into logits."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, classes)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the vectors that enter the last layer, (N, width)."""
        vectors: torch.Tensor = self.body(images)
        return vectors

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of ``images`` (N, channels, height, width), (N, classes)."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


class Halved(nn.Module):
    """2x2 max pooling, the same numbers as torch's."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the largest of each cell; an odd last line belongs to none."""
        if torch.is_grad_enabled():
            return nn.functional.max_pool2d(maps, 2)
        # Without the places of the largest, which only gradients need: 2 to 10 times faster.
        high, wide = maps.shape[2] // 2 * 2, maps.shape[3] // 2 * 2
        rows = torch.maximum(maps[:, :, 0:high:2], maps[:, :, 1:high:2])
        return torch.maximum(rows[..., 0:wide:2], rows[..., 1:wide:2])


def logistic(shape: ImageShape, classes: int) -> Network:
    """Return multinomial logistic regression on the pixels (models.md section 1)."""
    height, width, channels = shape
    return Network(nn.Flatten(), height * width * channels, classes)


def perceptron(shape: ImageShape, classes: int, *, hidden: int) -> Network:
    """Return a perceptron with one hidden layer (models.md section 2)."""
    height, width, channels = shape
    body = nn.Sequential(nn.Flatten(), nn.Linear(height * width * channels, hidden), nn.ReLU())
    return Network(body, hidden, classes)


def cnn(
    shape: ImageShape, classes: int, *, conv: tuple[int, int], dense: tuple[int, int]
) -> Network:
    """Return the CIFAR net of the FedAvg literature (models.md section 3)."""
    height, width, channels = shape
    body = nn.Sequential(
        *_conv5_pool(channels, conv[0]),
        *_conv5_pool(conv[0], conv[1]),
        nn.Flatten(),
        nn.Linear(conv[1] * _after_conv5(height) * _after_conv5(width), dense[0]),
        nn.ReLU(),
        nn.Linear(dense[0], dense[1]),
        nn.ReLU(),
    )
    return Network(body, dense[1], classes)


def lenet5(shape: ImageShape, classes: int, *, batch_norm: bool) -> Network:
    """Return LeNet-5, with FedFixer's batch norm before the flattening or plain (section 6)."""
    height, width, channels = shape
    body = nn.Sequential(
        *_conv5_pool(channels, 6),
        *_conv5_pool(6, 16),
        *([nn.BatchNorm2d(16)] if batch_norm else []),
        nn.Flatten(),
        nn.Linear(16 * _after_conv5(height) * _after_conv5(width), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return Network(body, 84, classes)


def small_cnn(shape: ImageShape, classes: int, *, widths: tuple[int, int]) -> Network:
    """Return two blocks of 3x3 convolution, batch norm, ReLU and pooling, and a linear head."""
    height, width, channels = shape
    body = nn.Sequential(
        *_conv3_norm(channels, widths[0]),
        nn.ReLU(),
        Halved(),
        *_conv3_norm(widths[0], widths[1]),
        nn.ReLU(),
        Halved(),
        nn.Flatten(),
    )
    return Network(body, widths[1] * (height // 4) * (width // 4), classes)


def four_conv(shape: ImageShape, classes: int, *, width: int, track_running_stats: bool) -> Network:
    """Return FedRN's four blocks of convolution, batch norm, ReLU and pooling (section 7)."""
    layers: list[nn.Module] = []
    for inputs in (shape[2], width, width, width):
        layers += [
            nn.Conv2d(inputs, width, 3, padding=1),  # with the bias of the paper's code
            nn.BatchNorm2d(width, track_running_stats=track_running_stats),
            nn.ReLU(),
            Halved(),
        ]
    body = nn.Sequential(*layers, nn.Flatten())
    return Network(body, width * (shape[0] // 16) * (shape[1] // 16), classes)


def nine_conv(shape: ImageShape, classes: int, *, test_dropout: bool) -> Network:
    """Return the nine-layer network of the Co-teaching family (section 8)."""
    layers: list[nn.Module] = []
    inputs = shape[2]
    for outputs, padding in ((128, 1), (256, 1)):
        for _ in range(3):
            layers += _conv3_leaky(inputs, outputs, padding=padding)
            inputs = outputs
        layers += [Halved(), AlwaysDropout2d(0.25) if test_dropout else nn.Dropout2d(0.25)]
    for outputs in (512, 256, 128):
        layers += _conv3_leaky(inputs, outputs, padding=0)
        inputs = outputs
    return Network(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 128, classes)


class AlwaysDropout2d(nn.Dropout2d):
    """Dropout that stays on when testing."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the maps, some of them 0."""
        return nn.functional.dropout2d(maps, self.p, training=True)


def resnet(
    shape: ImageShape,
    classes: int,
    *,
    blocks: Sequence[int],
    block: Callable[[int, int, int], nn.Module] | None = None,
) -> Network:
    """Return a residual network with the CIFAR stem and ``blocks`` per stage (section 4)."""
    stages: list[nn.Module] = []
    inputs = 64
    for stage, (outputs, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True)):
        for number in range(count):
            stride = 2 if stage > 0 and number == 0 else 1
            stages.append((block or BasicBlock)(inputs, outputs, stride))
            inputs = outputs
    stem = [*_conv3_norm(shape[2], 64), nn.ReLU()]
    body = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(body, 512, classes)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to a shortcut (section 4)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_conv3_norm(inputs, outputs, stride=stride),
            nn.ReLU(),
            *_conv3_norm(outputs, outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return relu(residual + shortcut)."""
        return torch.relu(self.residual(maps) + self.shortcut(maps))


class PreActBlock(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions, added to a shortcut (DivideMix).

    As in DivideMix's code, the shortcut starts behind the first ReLU also where it is the identity,
    and no norm follows the last block.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.before = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.residual = nn.Sequential(
            *_conv3_norm(inputs, outputs, stride=stride),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return residual + shortcut of the activated maps."""
        active = self.before(maps)
        added: torch.Tensor = self.residual(active) + self.shortcut(active)
        return added


def resnet50(shape: ImageShape, classes: int) -> Network:
    """Return torchvision's ResNet-50, its last layer replaced by the head (section 5)."""
    from torchvision.models import resnet50 as torchvision_resnet50

    body = torchvision_resnet50(weights=None)
    body.conv1 = _stem(shape[2], 64, kernel=7, stride=2)
    body.fc = nn.Identity()
    return Network(body, 2048, classes)


def mobilenet(shape: ImageShape, classes: int, *, stem_stride: int) -> Network:
    """Return torchvision's MobileNetV2 with its dropout, last layer replaced (section 7)."""
    from torchvision.models import mobilenet_v2

    body = mobilenet_v2(weights=None)
    body.features[0][0] = _stem(shape[2], 32, kernel=3, stride=stem_stride)
    body.classifier[1] = nn.Identity()
    return Network(body, 1280, classes)


def _stem(channels: int, outputs: int, *, kernel: int, stride: int) -> nn.Conv2d:
    """Return a first convolution for any number of channels, with torchvision's random weights."""
    conv = nn.Conv2d(channels, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _conv3_norm(inputs: int, outputs: int, *, stride: int = 1) -> list[nn.Module]:
    # No bias: batch norm removes it, so its gradient is rounding noise, which Adam would follow.
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def _conv3_leaky(inputs: int, outputs: int, *, padding: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, padding=padding)  # with the bias of the released codes
    return [conv, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.01)]


def _conv5_pool(inputs: int, outputs: int) -> list[nn.Module]:
    # ReLU of the largest is the largest ReLU, bit for bit, at a quarter of the work.
    return [nn.Conv2d(inputs, outputs, 5), Halved(), nn.ReLU()]


def _after_conv5(side: int) -> int:
    """Return the side of the maps after two ``_conv5_pool``."""
    return ((side - 4) // 2 - 4) // 2

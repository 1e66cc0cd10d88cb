"""What networks are made of, as torch modules: import this module inside functions only.

The models of ``raysim.models.zoo`` put them together.
"""

from __future__ import annotations

from collections import OrderedDict
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


class AlwaysDropout2d(nn.Dropout2d):
    """Dropout that stays on when testing."""

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the maps, some of them 0."""
        return nn.functional.dropout2d(maps, self.p, training=True)


def residual_stages(
    channels: int, blocks: Sequence[int], block: Callable[[int, int, int], nn.Module]
) -> nn.Module:
    """Return the CIFAR stem and four stages of ``blocks`` blocks, pooled to 512 numbers."""
    stages: list[nn.Module] = []
    inputs = 64
    for stage, (outputs, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True)):
        for number in range(count):
            stages.append(block(inputs, outputs, 2 if stage > 0 and number == 0 else 1))
            inputs = outputs
    stem = [*conv3_norm(channels, 64), nn.ReLU()]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *conv3_norm(inputs, outputs, stride=stride),
            nn.ReLU(),
            *conv3_norm(outputs, outputs),
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
            *conv3_norm(inputs, outputs, stride=stride),
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


def torchvision_stem(channels: int, outputs: int, *, kernel: int, stride: int) -> nn.Conv2d:
    """Return a first convolution for any number of channels, with torchvision's random weights."""
    conv = nn.Conv2d(channels, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def conv3_norm(inputs: int, outputs: int, *, stride: int = 1) -> list[nn.Module]:
    # No bias: batch norm removes it, so its gradient is rounding noise, which Adam would follow.
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def conv5_net(
    image_shape: ImageShape, maps: Sequence[int], widths: Sequence[int], *, norm: bool = False
) -> nn.Module:
    """Return two 5x5 convolutions, pooled, and two dense layers; ``norm``: after the second."""
    height, across, inputs = image_shape
    layers: list[nn.Module] = []
    for outputs in maps:
        # ReLU of the largest is the largest ReLU, bit for bit, at a quarter of the work.
        layers += [nn.Conv2d(inputs, outputs, 5), Halved(), nn.ReLU()]
        height, across, inputs = (height - 4) // 2, (across - 4) // 2, outputs
    layers += [*([nn.BatchNorm2d(inputs)] if norm else []), nn.Flatten()]
    inputs *= height * across
    for outputs in widths:
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers)


# ---- the vision transformer: N images, T tokens (patches and the class token), W width -------


class VisionTransformer(nn.Module):
    """Images to the class token (N, W) after the last block; patches are square.

    Layers have the names and the epsilon of the timm package, where ClipFL's network comes from, so
    that its weights can be loaded by name.
    """

    def __init__(
        self, shape: ImageShape, *, patch: int, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        height, across, channels = shape
        tokens = 1 + (height // patch) * (across // patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, width))
        _draw(self.cls_token, deviation=1e-6)
        _draw(self.pos_embed, deviation=0.02)
        project = nn.Conv2d(channels, width, patch, stride=patch)
        self.patch_embed = nn.Sequential(OrderedDict(proj=project, flat=nn.Flatten(2)))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the class tokens of ``images`` (N, channels, height, width)."""
        patches = self.patch_embed(images).transpose(1, 2)
        first = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat([first, patches], dim=1) + self.pos_embed
        vectors: torch.Tensor = self.norm(self.blocks(tokens)[:, 0])
        return vectors


class TransformerBlock(nn.Module):
    """Attention and a perceptron on tokens (N, T, W), each normed before and added after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        hidden = 4 * width
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=first, act=nn.GELU(), fc2=second))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the changed tokens."""
        tokens = tokens + self.attn(self.norm1(tokens))
        changed: torch.Tensor = tokens + self.mlp(self.norm2(tokens))
        return changed


class Attention(nn.Module):
    """Softmax(q k' / sqrt(d)) v for every head, d = W / heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mixed tokens (N, T, W)."""
        parts = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()  # each (N, heads, T, d)
        # Products written out: gradients of torch's fused kernels may vary between runs on a GPU.
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(2, 3)
        mixed = scores.softmax(dim=3) @ value
        out: torch.Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return out


def initialise_linear(module: nn.Module) -> None:
    """Give a linear layer timm's random weights, deviation 0.02, and no bias."""
    if isinstance(module, nn.Linear):
        _draw(module.weight, deviation=0.02)
        nn.init.zeros_(module.bias)


def _draw(weights: torch.Tensor, *, deviation: float) -> None:
    """Fill with normal numbers; timm cuts them at +-2, 100 deviations, where none are."""
    if not weights.is_meta:  # there torch would load its compiler for nothing, 2 s
        nn.init.normal_(weights, std=deviation)

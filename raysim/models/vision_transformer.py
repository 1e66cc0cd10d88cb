"""The vision transformer. This module imports torch: import it inside functions only.

Layers carry the names of the timm package, where ClipFL's network comes from, so that its weights
can be loaded by name.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from raysim.models.networks import ImageShape, Network

# N images, T tokens (patches and the class token), W width

MLP_RATIO = 4  # models.md section 9
EPSILON = 1e-6  # of the layer norms; timm's, PyTorch's default is 1e-5


def vision_transformer(
    shape: ImageShape, classes: int, *, patch: int, width: int, depth: int, heads: int
) -> Network:
    """Return a transformer over square patches that classifies by a class token (section 9)."""
    body = VisionTransformer(shape, patch=patch, width=width, depth=depth, heads=heads)
    network = Network(body, width, classes)
    network.apply(_initialise)
    return network


class VisionTransformer(nn.Module):
    """Images to the class token (N, W) after the last block."""

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
        self.patch_embed = _named(proj=project, flat=nn.Flatten(2))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the class tokens of ``images`` (N, channels, height, width)."""
        patches = self.patch_embed(images).transpose(1, 2)
        first = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat([first, patches], dim=1) + self.pos_embed
        vectors: torch.Tensor = self.norm(self.blocks(tokens)[:, 0])
        return vectors


class Block(nn.Module):
    """Attention and a perceptron on tokens (N, T, W), each normed before and added after."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPSILON)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=EPSILON)
        hidden = MLP_RATIO * width
        self.mlp = _named(fc1=nn.Linear(width, hidden), act=nn.GELU(), fc2=nn.Linear(hidden, width))

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


def _named(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


def _initialise(module: nn.Module) -> None:
    """Give linear layers timm's random weights, deviation 0.02 and no bias."""
    if isinstance(module, nn.Linear):
        _draw(module.weight, deviation=0.02)
        nn.init.zeros_(module.bias)


def _draw(weights: torch.Tensor, *, deviation: float) -> None:
    """Fill with normal numbers; timm cuts them at +-2, 100 deviations, where none are."""
    if not weights.is_meta:  # there torch would load its compiler for nothing, 2 s
        nn.init.normal_(weights, std=deviation)

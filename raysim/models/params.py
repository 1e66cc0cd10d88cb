"""A model as it travels: a tree of two flat float32 arrays, and the way into and out of torch.

``trainable`` holds the parameters, ``buffers`` the running statistics of batch norm, each in the
module's own order. Batch norm's integer counters stay behind: nothing reads them while its momentum
is fixed, and they cannot be averaged.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from raysim.errors import ConfigError
from raysim.models.weights_file import stored_arrays
from raysim.models.zoo import Model, dense_widths
from raysim.protocols import Tree
from raysim.seeding import stream, stream_seed

if TYPE_CHECKING:
    import torch

    from raysim.models.networks import ImageShape, Network

logger = logging.getLogger(__name__)

NamedShapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of what lies in the flat arrays, in order."""

    trainable: NamedShapes
    buffers: NamedShapes

    @property
    def num_trainable(self) -> int:
        """Length of the flat array of parameters."""
        return sum(prod(shape) for _, shape in self.trainable)


@lru_cache(maxsize=32)
def layout(model: Model, image_shape: ImageShape, classes: int) -> Layout:
    """Return the layout of ``model``'s tree without allocating the network."""
    import torch

    with torch.device("meta"):
        parts = _parts(model.build(image_shape, classes))
    shapes = {
        part: tuple((name, tuple(tensor.shape)) for name, tensor in tensors.items())
        for part, tensors in parts.items()
    }
    return Layout(trainable=shapes["trainable"], buffers=shapes["buffers"])


def num_parameters(model: Model, image_shape: ImageShape, classes: int) -> int:
    """Return the number of trainable parameters; dense models need no torch for it."""
    widths = dense_widths(model, image_shape, classes)
    if widths is not None:
        return sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(widths))
    return layout(model, image_shape, classes).num_trainable


def to_tree(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return a copy of the module's weights as a tree."""
    return {part: _flatten(list(tensors.values())) for part, tensors in _parts(module).items()}


def load_tree(module: torch.nn.Module, tree: Tree) -> None:
    """Copy ``tree`` into the module; its arrays may be read-only and are not kept."""
    import torch

    with torch.no_grad():
        for part, tensors in _parts(module).items():
            _fill(list(tensors.values()), tree[part], part)
        for buffer in module.buffers():
            if not buffer.is_floating_point():
                buffer.zero_()


def named_arrays(tree: Tree, shapes: Layout) -> dict[str, np.ndarray]:
    """Return the arrays by name in their own shapes, as views of the tree (for export)."""
    found: dict[str, np.ndarray] = {}
    for part, names in (("trainable", shapes.trainable), ("buffers", shapes.buffers)):
        _refuse_other_size(tree[part], sum(prod(shape) for _, shape in names), part)
        ends = list(itertools.accumulate(prod(shape) for _, shape in names))
        pieces = np.split(tree[part], ends[:-1]) if names else []
        found |= {
            name: piece.reshape(shape) for (name, shape), piece in zip(names, pieces, strict=True)
        }
    return found


def initial_tree(
    model: Model, image_shape: ImageShape, classes: int, seed: int
) -> dict[str, np.ndarray]:
    """Return random weights by PyTorch's default rule, the same everywhere for one ``seed``.

    Those of the file ``model.weights``, if it is set, take their place.
    """
    widths = dense_widths(model, image_shape, classes)
    if widths is not None:
        tree = _initial_dense(widths, stream(seed, "initial weights"))
    else:
        with seeded(stream_seed(seed, "initial weights")):
            tree = to_tree(model.build(image_shape, classes))
    path = getattr(model, "weights", None)
    return tree if path is None else _with_stored(tree, path, layout(model, image_shape, classes))


def different_trees(
    model: Model, image_shape: ImageShape, classes: int, seeds: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    """Return ``initial_tree`` of every seed; refuses a file that makes them all equal."""
    trees = [initial_tree(model, image_shape, classes, seed) for seed in seeds]
    if len(trees) > 1 and np.array_equal(trees[0]["trainable"], trees[1]["trainable"]):
        raise ConfigError(
            f"model.weights gives all {len(trees)} models the same weights, their heads included, "
            "but the method needs different ones; leave model.weights out, or use a file with a "
            "head for other classes"
        )
    return trees


def module_for(
    model: Model, image_shape: ImageShape, classes: int, *, device: str = "cpu", slot: int = 0
) -> Network:
    """Return this process's one network of that kind, for use until the next call that loads it.

    Its weights are whatever was loaded last. Work that needs two of a kind at once takes two slots;
    ``train_client`` and ``evaluate`` use slot 0.
    """
    # The cache tells a default from the same value given, so only this line may call it.
    return _cached_module(model, image_shape, classes, device, slot)


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Seed torch and pick reproducible GPU kernels for the block; undo both afterwards."""
    import torch

    gpus = [torch.device(device)] if device != "cpu" else []
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with torch.random.fork_rng(devices=gpus), exact:
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


@lru_cache(maxsize=8)
def _cached_module(
    model: Model, image_shape: ImageShape, classes: int, device: str, slot: int
) -> Network:
    import torch

    with seeded(0):
        module = model.build(image_shape, classes)
    # Channels last: measured 1.5 times faster on one CPU thread for cnn, 1.3 for resnet10.
    return module.to(device).to(memory_format=torch.channels_last)


def _initial_dense(widths: tuple[int, ...], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return weights and biases uniform in +-1/sqrt(inputs), as ``nn.Linear``, without torch."""
    parts = []
    for inputs, outputs in itertools.pairwise(widths):
        limit = inputs**-0.5
        parts.append(rng.uniform(-limit, limit, outputs * inputs + outputs))
    flat = np.concatenate(parts).astype(np.float32)
    return {"trainable": flat, "buffers": np.zeros(0, dtype=np.float32)}


def _with_stored(tree: dict[str, np.ndarray], path: str, shapes: Layout) -> dict[str, np.ndarray]:
    """Return a tree with the arrays of a file, and those of ``tree`` where the file has none."""
    mixed = {part: flat.copy() for part, flat in tree.items()}
    stored = stored_arrays(path, shapes)
    for name, view in named_arrays(mixed, shapes).items():
        if name in stored:
            view[...] = stored[name]
    head = "stored" if "head.weight" in stored else "random"
    logger.info("initial weights from %s, head %s", path, head)
    return mixed


def image_shape_of(images: np.ndarray) -> ImageShape:
    """Return (height, width, channels) of images (N, channels, height, width)."""
    channels, height, width = images.shape[1:]
    return height, width, channels


def _parts(module: torch.nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
    return {"trainable": dict(module.named_parameters()), "buffers": buffers}


def _flatten(tensors: list[torch.Tensor]) -> np.ndarray:
    import torch

    if not tensors:
        return np.zeros(0, dtype=np.float32)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu().numpy()


def _fill(tensors: list[torch.Tensor], flat: np.ndarray, part: str) -> None:
    import torch

    sizes = [tensor.numel() for tensor in tensors]
    _refuse_other_size(flat, sum(sizes), part)
    if tensors:
        source = torch.tensor(flat, dtype=torch.float32, device=tensors[0].device)
        for tensor, piece in zip(tensors, torch.split(source, sizes), strict=True):
            tensor.copy_(piece.view_as(tensor))


def _refuse_other_size(flat: np.ndarray, size: int, part: str) -> None:
    if flat.shape != (size,):
        raise ConfigError(
            f"the stored model's {part} array must have shape ({size},), got {flat.shape}; "
            "it was made with other model settings or for other images or classes"
        )
